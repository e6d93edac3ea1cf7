"""`embodied-rl view` of a run that stores no episodes: its policy plays those of its report once more."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.assembly.build import POLICY, build_actor, describe_origin, find_method
from embodied_rl.assembly.policy_factory import load_deployed
from embodied_rl.checkpoints.policy_file import save_actor
from embodied_rl.commands.view import check_start
from embodied_rl.commands.view_run import check_run, play_episodes
from embodied_rl.config.freeze import thaw_config, to_yaml
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.rollout.replay.signals import Signal, stores_none
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import AlgoNode, PolicyNode, SimNode, TrainConfig, ViewConfig
from tests.support.refusals import refuses

SIM = SimNode("tabletop", options={"image_size": 16, "horizon": 9})
SIZES = {"width": 16, "layers": 1, "heads": 2, "stem_channels": 8, "keypoints": 4, "horizon": 4}


def make_run(folder: Path, critic: str = "privileged", algo: str = "ppo", sim: SimNode = SIM) -> Path:
    """A run whose policy and critic have new weights."""
    config = TrainConfig(sim, PolicyNode("pocket", critic=critic, options=SIZES), AlgoNode(algo))
    spec = SimulatorKind.find(SIM).spec
    torch.manual_seed(0)
    actor = build_actor(config.policy, config.algo.sampler, spec, find_method(config.algo).needs)
    origin = describe_origin(sim, config.algo.sampler, spec.control_hz)
    folder.mkdir()
    save_actor(folder / POLICY, actor, "pocket", thaw_config(actor.network.config), extra=origin)
    (folder / "config.yaml").write_text(to_yaml(config))
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def read(folder: Path, *numbers: int) -> dict[int, dict[tuple[str, ...], Signal]]:
    return {n: {s.path: s for s in each.read()} for n, each in play_episodes(folder, numbers).items()}


def test_episodes_are_those_of_the_report(run: Path) -> None:
    """Their outcomes, lengths and rewards are those of an evaluation with more environments."""
    kind = SimulatorKind.find(SIM)
    listed = enumerate_episodes(kind.spec, "eval", 12)
    results = evaluate_policy(load_deployed(str(run)), [kind.inline(12, "other")], kind.spec, listed, 0, 12, None)
    played = play_episodes(run, [11, 3, 7])
    assert sorted(played) == [3, 7, 11]
    for number, episode in played.items():
        signals, result = {each.path: each for each in episode.read()}, results[number]
        assert f"seed {listed[number].seed}" in episode.title
        assert episode.title.endswith("success" if result.success else "failure")
        assert len(signals["action", "executed"].steps) == result.steps
        assert signals["reward",].values.sum() == pytest.approx(result.reward)
        assert len(set(signals["source",].values)) == 1


def test_a_run_of_one_task_plays_that_task(run: Path) -> None:
    change(run, "\n  task: null", "\n  task: press")
    change(run, "final_episodes: 512", "final_episodes: 6")
    assert check_run(run) == 6
    assert all("press" in each.title for each in play_episodes(run, range(6)).values())


def test_final_pictures_follow_where_the_time_limit_ended_an_episode(run: Path) -> None:
    (signals,) = read(run, 0).values()
    assert len(signals["action", "executed"].steps) == SIM.options["horizon"]
    for path in (("state",), ("privileged",), ("camera", "front")):
        assert signals[path].steps.tolist() == list(range(SIM.options["horizon"] + 1))
    assert np.ptp(signals["camera", "front"].values) > 50


@pytest.mark.parametrize("critic", ["privileged", "prefix", "expert"])
def test_values_are_those_of_the_runs_critic(tmp_path: Path, critic: str) -> None:
    folder = make_run(tmp_path / critic, critic)
    (signals,) = read(folder, 2).values()
    value = signals["value",]
    assert value.steps.tolist() == signals["action", "executed"].steps.tolist() and value.values.std() > 0
    if critic == "privileged":  # by hand, from the file's weights
        weights = load_file(folder / POLICY)
        x = torch.tensor(signals["privileged",].values[: len(value.steps)])
        layers = [(weights[f"critic.head.{n}.weight"].T, weights[f"critic.head.{n}.bias"]) for n in (0, 2, 4)]
        for weight, bias in layers[:2]:
            x = torch.nn.functional.silu(x @ weight + bias)
        np.testing.assert_allclose(value.values, (x @ layers[2][0] + layers[2][1]).numpy(), atol=1e-5)


def test_an_algorithm_without_critic_has_no_values(tmp_path: Path) -> None:
    (signals,) = read(make_run(tmp_path / "run", algo="grpo"), 0).values()
    assert ("value",) not in signals


def test_a_run_of_sft_has_no_values(run: Path) -> None:
    with (run / "config.yaml").open("a") as file:
        file.write("eval_episodes: 256\n")
    (signals,) = read(run, 0).values()
    assert ("value",) not in signals


def test_a_dry_run_plays_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rerun", reason="rerun-sdk is not installed: pip install 'embodied-rl[view]'")
    monkeypatch.setattr(SimulatorKind, "build", None)
    assert stores_none(run)
    rows = dict(check_start(ViewConfig(str(run), str(tmp_path / "x.rrd"), (0, -1))))
    assert rows["episodes"] == "0, 511 of 512"


def test_a_run_on_a_robot_is_not_moved(tmp_path: Path) -> None:
    robot = SimNode("robot", options={"robot": "tabletop"})
    with refuses("replay-missing", tmp_path / "run", "does not move robots"):
        check_run(make_run(tmp_path / "run", sim=robot))


def test_what_the_runs_file_replaces_is_not_read(run: Path) -> None:
    """Where the weights, the tokenizer and the statistics came from, and which device it ran on."""
    change(run, "checkpoint: null", "checkpoint: /elsewhere/policy.safetensors")
    change(run, "tokenizer: null", "tokenizer: /elsewhere/tokenizer.json")
    change(run, "statistics: null", "statistics: /elsewhere/stats.json")
    change(run, "device: auto", "device: cuda")
    check_run(run)
    (signals,) = read(run, 0).values()
    assert ("value",) in signals


def change(run: Path, old: str, new: str) -> None:
    text = (run / "config.yaml").read_text()
    assert text.count(old) >= 1
    (run / "config.yaml").write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("key", ["policy", "train", "logger"])
def test_a_configuration_that_is_cut_is_refused_before_anything_plays(run: Path, key: str) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text[: text.index(f"\n{key}:") + 1])
    with refuses("config-damaged", run / "config.yaml"):
        check_run(run)


def test_a_policy_without_its_runs_configuration_plays_without_values(run: Path) -> None:
    (run / "config.yaml").unlink()
    (run / "checkpoints").mkdir()
    check_run(run)
    (signals,) = read(run, 0).values()
    assert ("value",) not in signals


def test_another_critic_than_the_files_is_refused_by_its_configuration(run: Path) -> None:
    change(run, "critic: privileged", "critic: prefix")
    with refuses("checkpoint-of-another-network", run / POLICY):
        play_episodes(run, [0])
    change(run, "critic: prefix", "critic: none of these")
    with refuses("value-unknown", run / "config.yaml"):
        play_episodes(run, [0])


def test_a_run_without_a_checkpoint_is_named(run: Path) -> None:
    (run / POLICY).unlink()
    with refuses("checkpoint-missing", run):
        check_run(run)


def test_a_run_that_names_code_to_run_is_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", sim=replace(SIM, python="evil/python"))
    with refuses("setting-not-trusted", "sim.python", "embodied-rl collect"):
        check_run(folder)
