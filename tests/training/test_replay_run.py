"""Runs that learn from replay: what they store, and settings that are refused before anything starts."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.assembly.build import resolve_policy_file
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.interfaces.sim import Episode, Observation, Source, StepResult
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import TrainConfig
from embodied_rl.schema.config_file import load_config
from embodied_rl.training import run_parts
from embodied_rl.training.extension import describe_resume
from tests.support.reaching import SIZE, Reaching
from tests.support.running import ITERATIONS, REACHING, SMALL, figures
from tests.support.stopping import assert_stopped_goes_on_alike
from tests.support.using_checkpoints import assert_same_tensors

FILTERED = (
    *(word for word in SMALL if "critic" not in word), *REACHING, "algo=filtered", "algo.steps=4", "plan.ranks=1"
)  # fmt: skip


def test_a_run_stores_what_its_deployed_policy_did(typed: Callable[..., Any], tmp_path: Path) -> None:
    code, _, err = typed("train", *FILTERED, "algo.held_out=0")
    assert code == 0, err
    run = next((tmp_path / "runs").glob("*/*"))
    storage, rows = ReplayStorage.open(run / "replay" / "collector_0"), figures(run)
    episodes = storage.list_episodes()
    assert len(episodes) == rows[-1]["update/episodes"] == rows[-1]["total/episodes"]
    assert sum(each.success for each in episodes) == rows[-1]["update/successes"] > 0
    learned = [row["update/rows"] for row in rows]
    assert learned == sorted(learned) and learned[-1] > learned[0]
    versions = {int(version) for part in storage.episodes() for version in part.version}
    assert versions == set(range(ITERATIONS))


@pytest.mark.thorough
@pytest.mark.process
def test_two_ranks_store_and_learn_together(typed: Callable[..., Any], tmp_path: Path) -> None:
    words = [word for word in FILTERED if word != "plan.ranks=1"]
    code, _, err = typed("train", *words, "plan=colocated", "plan.ranks=2", "replay.root=stored")
    assert code == 0, err
    stored = [ReplayStorage.open(tmp_path / "stored" / f"collector_{rank}").list_episodes() for rank in range(2)]
    last = figures(next((tmp_path / "runs").glob("*/*")))[-1]
    assert sum(map(len, stored)) == last["total/episodes"] == last["update/episodes"]


@pytest.mark.thorough
def test_a_dry_run_shows_the_space_that_the_storage_takes(typed: Callable[..., Any], tmp_path: Path) -> None:
    """As many bytes as its files have, but for their headers."""
    code, out, _ = typed("train", *FILTERED, "--dry-run")
    (row,) = (line for line in out.splitlines() if line.startswith("replay "))
    assert code == 0 and typed("train", *FILTERED, "replay.root=stored", "train.iterations=1")[0] == 0
    taken = sum(path.stat().st_size for path in (tmp_path / "stored").rglob("*.npy"))
    assert row.split()[2] == "MB" and float(row.split()[1]) == pytest.approx(taken / 1e6, rel=0.01)


def test_an_algorithm_that_learns_from_rollouts_takes_no_replay(typed: Callable[..., Any]) -> None:
    code, _, err = typed("train", *SMALL, *REACHING, "plan.ranks=1", "replay.capacity=9")
    assert code == 2 and "[key-unused] replay" in err


@pytest.mark.thorough
def test_a_run_does_not_go_on_with_other_offline_experience(typed: Callable[..., Any], tmp_path: Path) -> None:
    """It has changed since the checkpoint, in what was seen by nobody but its results."""
    assert typed("train", *FILTERED, "replay.root=first")[0] == 0
    settings = (*FILTERED, "replay.preload=first", "run.root=second", "train.iterations=2")
    assert typed("train", *settings)[0] == 0
    rewards = np.load(tmp_path / "first" / "collector_0" / "reward.npy", mmap_mode="r+")
    rewards += 1
    rewards.flush()
    again = ("train", "resume=last", "run.root=second", "train.iterations=4", "replay.preload=first")
    code, _, err = typed(*again)
    assert code == 2 and "replay.preload" in err, err
    rewards -= 1
    rewards.flush()
    assert typed(*again)[0] == 0


@pytest.mark.thorough
def test_a_run_goes_on_from_elsewhere_and_not_without_what_it_stored(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are not, the run stays as it was; the command that continues it has absolute paths."""
    assert typed("train", *FILTERED, "replay.root=first", "run.root=earlier")[0] == 0
    assert typed("train", *FILTERED, "replay.preload=first", "replay.root=own", "train.iterations=2")[0] == 0
    run = next((tmp_path / "runs").glob("*/*"))
    again = ("train", f"resume={run}", "train.iterations=3", f"replay.preload={tmp_path / 'first'}")
    config = load_config(TrainConfig, run / "config.yaml")
    named = describe_resume(config, RunFolder(run))
    assert f"replay.root={tmp_path / 'own'}" in named and f"replay.preload={tmp_path / 'first'}" in named
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.lock"}
    code, _, err = typed(*again, "replay.root=own")
    assert code == 2 and "[replay-missing] own/collector_0" in err, err
    assert {path: path.read_bytes() for path in before} == before and [*(tmp_path / "elsewhere").iterdir()] == []
    code, _, err = typed(*again, f"replay.root={tmp_path / 'own'}")
    assert code == 0, err


@pytest.mark.thorough
def test_a_run_learns_from_an_earlier_one_too(typed: Callable[..., Any], tmp_path: Path) -> None:
    """Which is not changed by it."""
    assert typed("train", *FILTERED, "algo.held_out=0", "replay.root=first")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "first").rglob("*.npy")}
    earlier = sum(each.success for each in ReplayStorage.open(tmp_path / "first" / "collector_0").list_episodes())
    code, _, err = typed("train", *FILTERED, "replay.preload=first", "run.root=second", "algo.held_out=0")
    assert code == 0, err
    rows = figures(next((tmp_path / "second").glob("*/*")))
    own = sum(row["rollout/episodes"] * row["rollout/success"] for row in rows[:1])
    assert rows[0]["update/successes"] == earlier + own
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.thorough
def test_a_run_learns_from_stored_episodes_alone(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts no training simulator, adds nothing to what is stored, and continues to the bit."""
    assert typed("train", *FILTERED, "replay.root=stored")[0] == 0
    shutil.rmtree(tmp_path / "runs")
    before = {path: path.read_bytes() for path in (tmp_path / "stored").rglob("*.*")}
    alone = (*FILTERED, "replay.preload=stored", "replay.collect=false", "plan=colocated")
    monkeypatch.setattr(run_parts, "make_collector", None)
    straight = assert_stopped_goes_on_alike(alone, tmp_path, monkeypatch, ("replay.preload=stored",))
    rows = figures(straight)
    stored = ReplayStorage.open(tmp_path / "stored" / "collector_0").list_episodes()
    assert {row["update/episodes"] for row in rows} == {len(stored)} and rows[0]["update/loss"] > 0
    assert rows[-1]["total/decisions"] == 0 and "rollout/success" not in rows[-1] and "eval/success" in rows[-1]
    assert {path: path.read_bytes() for path in (tmp_path / "stored").rglob("*.*")} == before


@pytest.mark.thorough
def test_a_run_goes_on_from_stored_episodes_to_its_own(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two iterations as if it collected nothing, one that only collects, then both; it continues to the bit."""
    assert typed("train", *FILTERED, "replay.root=stored")[0] == 0
    shutil.rmtree(tmp_path / "runs")
    settings = (*FILTERED, "replay.preload=stored", "checkpoint.every=1", "checkpoint.keep=9")
    both = (*settings, "replay.offline_iterations=2", "replay.warmup_iterations=1", "plan=colocated")
    straight = assert_stopped_goes_on_alike(both, tmp_path, monkeypatch, ("replay.preload=stored",))
    assert typed("train", *settings, "replay.collect=false", "plan=colocated", "run.root=alone")[0] == 0
    rows, files = figures(straight), sorted((straight / "checkpoints").glob("*/policy.safetensors"))
    weights = [load_file(file) for file in files]
    (alone,) = (tmp_path / "alone").glob("*/*")
    assert_same_tensors(weights[1], load_file(sorted((alone / "checkpoints").glob("*/policy.safetensors"))[1]))
    assert_same_tensors(weights[2], weights[1])
    assert all(any(not torch.equal(new[name], old[name]) for name in old) for old, new in pairwise(weights[2:]))
    offline = len(ReplayStorage.open(tmp_path / "stored" / "collector_0").list_episodes())
    assert [row["total/decisions"] > 0 for row in rows] == [False, False, *[True] * (len(rows) - 2)]
    assert [row.get("update/episodes") for row in rows[:3]] == [offline, offline, None]
    assert rows[3]["update/episodes"] == offline + rows[3]["total/episodes"]


@pytest.mark.thorough
def test_a_run_learns_from_a_dataset_alone(typed: Callable[..., Any], tmp_path: Path) -> None:
    """With a critic that reads what the dataset holds."""
    pytest.importorskip("pyarrow")
    simulator = ("sim.image_size=16", "sim.horizon=12")
    assert typed("collect", "expert", *simulator, "episodes=4", "format=lerobot", "images=png", "out=data")[0] == 0
    words = (
        "experiment=tabletop_offline", "algo=awr", *simulator, "sim.num_envs=2", "policy.checkpoint=null",
        "policy.width=16", "policy.layers=1", "policy.heads=2", "policy.stem_channels=8", "policy.keypoints=4",
        "policy.horizon=4",
        "train.iterations=1", "train.eval_episodes=2", "train.final_episodes=2", "train.film=false", "algo.steps=2",
        "algo.critic_steps=2", "plan.ranks=1", "replay.preload=data",
    )  # fmt: skip
    code, _, err = typed("train", *words)
    assert code == 2 and "[privileged-state-missing]" in err
    code, out, err = typed("train", *words, "policy.critic=prefix")
    assert code == 0, err
    assert "Offline: 4 episodes of data" in out
    (row,) = figures(next((tmp_path / "runs").glob("*/*")))
    frames = sum(json.loads(line)["steps"] for line in (tmp_path / "data" / "index.jsonl").read_text().splitlines())
    assert (row["update/episodes"], row["update/rows"]) == (4, frames)
    code, _, err = typed("train", *words, "policy.critic=prefix", "train.task=press")
    assert code == 2 and "[dataset-without-tasks] replay.preload=data" in err, err


@pytest.mark.thorough
def test_experience_of_another_robot_or_in_other_words_is_refused(typed: Callable[..., Any], tmp_path: Path) -> None:
    assert typed("train", *FILTERED, "replay.root=first", "train.iterations=1", "train.eval_every=0")[0] == 0
    shutil.rmtree(tmp_path / "runs")
    texts = tmp_path / "first" / "collector_0" / "texts.jsonl"
    known = texts.read_text()
    texts.write_text(known.replace("go", "fly"))
    code, _, err = typed("train", *FILTERED, "replay.preload=first")
    assert code == 2 and "first" in err and "fly" in err
    texts.write_text(known)
    layout = tmp_path / "first" / "collector_0" / "format.json"
    layout.write_text(layout.read_text().replace('"control_hz": ', '"control_hz": 1'))
    code, _, err = typed("train", *FILTERED, "replay.preload=first")
    assert code == 2 and "replay.preload=first: control_hz" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_what_a_robot_recorded_needs_no_privileged_state(typed: Callable[..., Any], tmp_path: Path) -> None:
    """In control steps; a critic that reads such state is refused."""
    spec = replace(Reaching.spec_of(Reaching.Config()), privileged_names=())
    storage = ReplayStorage(ReplayFormat.of_simulator(spec, 1, 20, 1), tmp_path / "recorded")
    words, count = spec.tasks[0].name, 6
    seen = Observation(
        {"top": np.zeros((count, SIZE, SIZE, 3), np.uint8)}, np.zeros((count, len(spec.state_names)), np.float32),
        (words,) * count,
    )  # fmt: skip
    actions = np.zeros((count, 1, spec.action_dim), np.float32)
    ends = np.arange(count) == count - 1
    came = StepResult(
        reward=ends[:, None].astype(np.float32), success=ends[:, None], steps=np.ones(count, np.int64),
        executed=actions, source=np.full((count, 1), Source.HUMAN, np.uint8), terminated=ends,
        truncated=np.zeros(count, bool), observation=seen,
    )  # fmt: skip
    storage.write_episode(0, Episode(0, 0, 0), seen, actions, came)
    storage.close()
    short = ("train.iterations=1", "replay.preload=recorded", "algo.held_out=0")
    assert typed("train", *FILTERED, *short)[0] == 0
    (row,) = figures(next((tmp_path / "runs").glob("*/*")))
    assert row["update/rows"] >= count and row["update/successes"] >= 1
    learned = (*(word for word in FILTERED if word != "algo=filtered"), "algo=awr", *short)
    code, _, err = typed("train", *learned)
    assert code == 2 and "policy.critic=privileged" in err and len(err.strip().splitlines()) == 1, err
    assert typed("train", *learned, "policy.critic=prefix")[0] == 0


RECAP = (*(word for word in FILTERED if word != "algo=filtered"), "algo=recap", "algo.critic_steps=3",
         "algo.guidance=2", "train.iterations=2", "train.eval_every=0")  # fmt: skip


@pytest.mark.thorough
@pytest.mark.process
def test_a_labelled_policy_goes_on(typed: Callable[..., Any], tmp_path: Path) -> None:
    """In evaluations and further runs, with its label and guidance; other algorithms refuse guidance in one line."""
    code, _, err = typed("train", *RECAP)
    assert code == 0, err
    run = next((tmp_path / "runs").glob("*/*"))
    body = read_metadata(resolve_policy_file(str(run))).embodiment
    assert (body.condition, body.guidance) == ("advantage: positive", 2.0)
    assert "advantage: positive, guidance 2" in typed("inspect", f"checkpoint={run}")[1]
    code, _, err = typed("eval", f"policy={run}", "episodes=2", "video.episodes=0", "plan=sync")
    assert code == 0, err
    further = [word.replace("policy.checkpoint=null", f"policy.checkpoint={run}") for word in RECAP]
    assert typed("train", *further, "run.root=second", "algo.guidance=1")[0] == 0
    learned = next((tmp_path / "second").glob("*/*"))
    changed = read_metadata(resolve_policy_file(str(learned))).embodiment
    assert changed == replace(body, guidance=1.0)
    others = [word for word in further if not word.startswith(("algo.guidance", "algo.critic", "algo="))]
    code, _, err = typed("train", *others, "algo=filtered", "run.root=third")
    assert code == 2 and "guidance-not-trained" in err and len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "third").exists()
    plain = [word.replace(str(run), str(learned)) for word in others]
    assert typed("train", *plain, "algo=filtered", "run.root=third")[0] == 0


@pytest.mark.thorough
def test_offline_instructions_need_room_for_the_labels(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven words and two are more than the eight that a policy reads whose simulator has at most four."""
    spec_of = Reaching.spec_of
    monkeypatch.setattr(
        Reaching, "spec_of", staticmethod(lambda config: replace(spec_of(config), instruction_length=4))
    )
    assert typed("train", *FILTERED, "replay.root=first", "train.iterations=1", "train.eval_every=0")[0] == 0
    texts = tmp_path / "first" / "collector_0" / "texts.jsonl"
    texts.write_text(texts.read_text().replace('"go', '"go go go go go go'))
    code, _, err = typed("train", *RECAP, "replay.preload=first", "run.root=second")
    assert code == 2 and "prompt-too-long" in err and "advantage:" in err, err
    assert not (tmp_path / "second").exists()
    assert typed("train", *FILTERED, "replay.preload=first", "run.root=second", "train.iterations=1")[0] == 0


@pytest.mark.thorough
@pytest.mark.process
def test_a_policy_in_a_separate_process_gets_the_guidance(typed: Callable[..., Any], tmp_path: Path) -> None:
    """Otherwise it would act without the label for ever."""
    for place in ("shared", "process"):
        split = (*RECAP, "plan=split", f"plan.policy={place}", f"run.root={place}")
        assert typed("train", *split)[0] == 0
    shared, apart = (figures(next((tmp_path / place).glob("*/*"))) for place in ("shared", "process"))
    alike = [{name: row[name] for name in row if name.startswith(("rollout/", "update/"))} for row in shared]
    assert alike == [{name: row[name] for name in each} for row, each in zip(apart, alike, strict=True)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("policy.delay=1", "policy.executed=1"), "policy.delay=1"),
        (("replay.root=.",), "replay.root=."),
        (("replay.root=something/x",), "replay.root=something/x"),
        (("replay.collect=false", "replay.preload=.", "replay.root=new"), "replay.root=new"),
        (("replay.collect=false", "replay.preload=.", "curriculum=success_rate"), "curriculum=success_rate"),
        (("reward=oracle",), "reward.name="),
        (("replay.preload=nothing",), "nothing"),
        (("replay.capacity=100000000000",), "replay.capacity=100000000000"),
        (("replay.capacity=0",), "replay.capacity"),
        (("replay.collect=false",), "replay.preload"),
        (("replay.collect=false", "replay.preload=.", "plan=auto"), "plan=colocated"),
        (("replay.offline_iterations=1",), "replay.preload"),
        (("replay.warmup_iterations=6",), "replay.warmup_iterations=6"),
        (("replay.warmup_iterations=1", "replay.collect=false", "replay.preload=."), "replay.warmup_iterations=1"),
        (("replay.offline_iterations=1", "replay.preload=.", "mode=async"), "replay.offline_iterations=1"),
    ],
)
def test_what_replay_cannot_do_is_refused_by_its_key(
    typed: Callable[..., Any], words: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    """In one line, and without a run folder."""
    (tmp_path / "something").touch()
    code, _, err = typed("train", *(word for word in FILTERED if word != "plan.ranks=1"), *words)
    assert code == 2 and named in err and len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "runs").exists()


STEERED = (*(word for word in FILTERED if word not in ("algo=filtered", "algo.steps=4")), "algo=dsrl", "algo.updates=2")


def test_start_noise_is_learned_and_deployed(typed: Callable[..., Any], tmp_path: Path) -> None:
    """By both variants; a run's policy file is continued, and the network stays what it was."""
    assert typed("train", *STEERED, "run.root=first", "algo.variant=sac", "replay.root=stored")[0] == 0
    run = next((tmp_path / "first").glob("*/*"))
    storage = ReplayStorage.open(tmp_path / "stored" / "collector_0")
    assert all(part.extra["trace/start_noise"].any(axis=1).all() for part in storage.episodes())
    rows = figures(run)
    assert rows[-1]["update/rows"] > rows[0]["update/rows"] > 0 and rows[-1]["update/steps"] == 2
    again = [word for word in STEERED if not word.startswith("policy.")]
    again += ["run.root=second", f"policy.checkpoint={run}", "train.iterations=1", "train.eval_every=0"]
    code, _, err = typed("train", *again, "replay.preload=stored")
    assert code == 0, err
    (row,) = figures(next((tmp_path / "second").glob("*/*")))
    assert row["update/episodes"] >= rows[-1]["update/episodes"]
    code, _, err = typed("train", *STEERED, "algo.variant=sac", "algo.shared=false", "replay.preload=stored")
    assert code == 2 and "replay.preload=stored" in err and err.count("\n") == 1, err
    names = ("first", "second")
    files = [next((tmp_path / name).glob("*/*/checkpoints/*/policy.safetensors")) for name in names]
    first, second = (load_file(file) for file in files)
    assert first.keys() == second.keys() and any(name.startswith("start_noise.") for name in first)
    assert all(torch.equal(first[name], second[name]) for name in first if name.startswith("backbone."))
    assert not any(name.startswith("critic.") for name in first)
    again = ("sim.name=reaching", f"policy.checkpoint={run}", "--dry-run")
    for words in (("train", "algo=filtered", "plan=colocated", "plan.ranks=1"), ("sft", "sim.num_envs=4")):
        code, _, err = typed(*words, *again)
        assert code == 2 and "[start-noise-not-continued]" in err and err.count("\n") == 1, err


@pytest.mark.thorough
@pytest.mark.process
def test_two_ranks_learn_start_noise_together(typed: Callable[..., Any], tmp_path: Path) -> None:
    """Also where their policies act in processes of their own."""
    words = [word for word in STEERED if word != "plan.ranks=1"]
    code, _, err = typed("train", *words, "plan=split", "plan.ranks=2", "plan.policy=process", "train.iterations=3")
    assert code == 0, err
    last = figures(next((tmp_path / "runs").glob("*/*")))[-1]
    assert last["total/episodes"] == last["update/episodes"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("policy.train=expert",), "policy.train=full"),
        (("policy.critic=expert",), "policy.critic=privileged or prefix"),
        (("algo.sampler.name=flow_noise",), "algo.sampler.name=flow_sde"),
        (("plan=colocated", "plan.ranks=2", "plan.learner=sharded"), "plan.learner=replicated"),
        (("algo.bound=0",), "algo.bound"),
        (("replay.preload=first", "algo.variant=sac"), "start_noise"),
        (("replay.preload=first", "policy.executed=1"), "policy.executed=2"),
    ],
)
def test_what_cannot_steer_is_refused_by_its_key(
    typed: Callable[..., Any], words: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    """In one line, before anything starts."""
    if "replay.preload=first" in words:
        assert typed("train", *FILTERED, "replay.root=first", "train.iterations=1", "train.eval_every=0")[0] == 0
        shutil.rmtree(tmp_path / "runs")
    own = [word.partition("=")[0] for word in words]
    code, _, err = typed("train", *(word for word in STEERED if word.partition("=")[0] not in own), *words)
    assert code == 2 and named in err and len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "runs").exists()
