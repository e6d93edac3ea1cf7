"""`sft` ends as `train` does, and what fails before anything was made leaves no folder."""

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from embodied_rl.assembly.loaded import load_policy
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.commands import train as train_command
from embodied_rl.commands.preparation import compose_config
from embodied_rl.config.assets import find_asset
from embodied_rl.config.freeze import freeze_config
from embodied_rl.critic.evaluation.filtered_demonstrations import FILE
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.report import Report
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import read_metrics
from embodied_rl.schema import PolicyNode, SimNode, next_command
from embodied_rl.training import cloning_report
from embodied_rl.training.algorithms.imitation.demonstrations import record_demonstrations
from embodied_rl.training.cloning_report import advise_next
from tests.support.running import POLICY, REACHING, SMALL, TABLETOP
from tests.training.algorithms.imitation.test_step_sources import record_tabletop

CLONE = (
    "sft", *(word for word in POLICY if "checkpoint" not in word), *TABLETOP, "sim.num_envs=4", "algo.frames=2",
    "algo.localise_steps=2", "algo.demonstrations=4", "algo.steps=3", "algo.finetune_steps=2", "eval_episodes=4",
)  # fmt: skip


@pytest.mark.thorough
def test_a_clone_is_reported_filmed_and_continued(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(cloning_report, "advise_next", lambda *all_of_it: given.extend(all_of_it) or "as advised")
    code, out, err = typed(*CLONE, "export=half.safetensors")
    assert code == 0, err
    (run,) = (tmp_path / "runs" / "sft").iterdir()
    name = run.relative_to(tmp_path)
    success = Report.read(run / "report.json").success
    assert read_metadata(tmp_path / "half.safetensors").extra["success"] == asdict(success)
    assert out.startswith(f"Run folder: {name}\n") and out.count(f"Run folder: {name}") == 2
    assert Report.read(run / "report.json").success.episodes == 4
    page = (run / "report.html").read_text()
    assert "Loss of localisation" in page and "Loss of cloning" in page and "<video" in page
    assert (run / "videos" / "grid.mp4").is_file() and (run / "policy.safetensors").is_file()
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [2, 5, 7], "the last step of each stage, counted over all of them"
    assert "Next:   as advised" in out
    config, kind, found, folder = given
    assert found.success.rate == 0 and "embodied-rl train" not in advise_next(config, kind, found, folder)
    half = SimpleNamespace(success=SimpleNamespace(rate=0.5))
    words = shlex.split(advise_next(config, kind, cast(Any, half), folder))
    assert words[:2] == ["embodied-rl", "train"] and f"policy.checkpoint={name}" in words
    code, out, err = typed(*words[1:], "--dry-run")
    assert code == 0, err


def test_sft_clones_the_filtered_demonstrations(typed: Callable[..., Any], tmp_path: Path) -> None:
    words = (
        "sft", "sim=tabletop", "policy=pocket", "sim.num_envs=4", "algo.frames=2", "algo.localise_steps=1",
        "algo.demonstrations=6", "algo.operator=faulty", "algo.steps=1", "eval_episodes=4", "run.root=runs",
    )  # fmt: skip
    code, out, err = typed(*words, "reward=embedded", "filter.end=0.5")
    assert code == 0, err
    (run,) = (tmp_path / "runs" / "sft").iterdir()
    said = json.loads((run / FILE).read_text(encoding="utf-8"))
    assert said["totals"]["episodes"] == 6 and "Filter by critic tabletop_critic" in out
    told = Report.read(run / "report.json").metadata
    assert told["filtered_by"] == "embedded" and told["filter"] == {"end": 0.5}
    code, _, err = typed(*words, "filter.end=0.5", "--dry-run")
    assert code == 2 and "[scorer-missing]" in err and "filter.end" in err


def test_an_operator_that_refuses_leaves_no_folder(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise UserError("no operator for this task")

    monkeypatch.setattr("embodied_rl.commands.sft.record_demonstrations", refuse)
    assert record_demonstrations is not refuse
    code, _, err = typed(*CLONE)
    assert code == 2 and "no operator for this task" in err
    assert not list((tmp_path / "runs" / "sft").iterdir())


def test_a_damaged_file_is_refused_before_anything_is_recorded(typed: Callable[..., Any], tmp_path: Path) -> None:
    damaged = bytearray(find_asset("tabletop_base.safetensors").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "base.safetensors").write_bytes(damaged)
    words = ("sft", "policy=pocket", "policy.checkpoint=base.safetensors", "sim.horizon=8")
    for asked in (words, ("inspect", "base.safetensors", "tensors=true")):
        code, _, err = typed(*asked)
        assert code == 2 and "[checkpoint-damaged]" in err and "base.safetensors" in err
    assert typed("inspect", "base.safetensors")[0] == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_fails_before_it_made_anything_leaves_no_folder(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    def fail(config: Any, function: Any, job: Any, timeout: float) -> None:
        if begun:
            (job[1].metrics).write_text("{}\n")
        raise UserError("a weight is not finite")

    monkeypatch.setattr(train_command.runtimes, "launch_ranks", fail)
    code, _, err = typed("train", *SMALL, *REACHING)
    assert code == 2 and "a weight is not finite" in err
    assert len(list((tmp_path / "runs" / "train").iterdir())) == begun


def test_other_failures_keep_the_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "train", 0)
    with pytest.raises(RuntimeError), folder.removed_if_bare():
        raise RuntimeError("a process died")
    assert folder.path.is_dir()


CHOICES = [
    ([], ["sim=tabletop"], ["policy=pocket"]),
    (["sim=maniskill_push", "policy=pocket"], ["sim=maniskill_push"], ["policy=pocket"]),
    (["sim.image_size=32", "sim.num_envs=7"], ["sim=tabletop", "sim.image_size=32"], ["policy=pocket"]),
    (["policy=pi0_tiny"], ["sim=tabletop"], ["policy=pi0_tiny"]),
    (["policy=pi0_tiny", "policy.heads=2"], ["sim=tabletop"],
     ["policy=pi0", "policy.train=full", "policy.critic=privileged"]),
    (["policy=pi0_tiny", "policy.train=expert", "policy.critic=prefix"], ["sim=tabletop"],
     ["policy=pi0_tiny", "policy.train=expert", "policy.critic=prefix"]),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("words", "sim", "policy"), CHOICES)
def test_the_next_command_names_the_same_simulator_and_network(
    words: list[str], sim: list[str], policy: list[str]
) -> None:
    mapping = compose_config("sft", words)
    node = freeze_config(PolicyNode, mapping["policy"], "policy")
    from embodied_rl.config import plugins
    from embodied_rl.config.freeze import thaw_config

    own = thaw_config(plugins.configure_plugin("policies", node, "policy")[1])
    node = freeze_config(PolicyNode, mapping["policy"] | own, "policy")
    assert next_command.choose_sim(freeze_config(SimNode, mapping["sim"], "sim")) == sim
    assert sorted(next_command.choose_policy(node)) == sorted(policy)


def test_values_are_written_as_they_are_typed() -> None:
    values = [None, True, 2, 0.5, "text", (1, "a"), {"push": 3}]
    assert [next_command.format_value(value) for value in values] == [
        "null", "true", "2", "0.5", "text", "[1,a]", "{push: 3}",
    ]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("episodes", "expected"), [(2, 2), (0, 0)])
def test_weights_are_saved_without_the_robot_that_would_evaluate_them(
    typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, episodes: int, expected: int
) -> None:
    def fail(*_: object) -> None:
        raise UserError("/command: the robot does not listen")

    monkeypatch.setattr("embodied_rl.robot_simulator.simulator.RobotSimulator.__init__", fail)
    record_tabletop(tmp_path / "shown", ())
    code, out, err = typed(
        "sft", *(word for word in POLICY if "checkpoint" not in word), "sim=robot", f"dataset={tmp_path / 'shown'}",
        "algo=sft_vla", "algo.finetune_steps=2", "algo.batch=4", f"eval_episodes={episodes}", "export=half.safetensors",
    )  # fmt: skip
    assert code == expected, err
    assert ("/command" in err) == (episodes > 0)
    (run,) = (tmp_path / "runs" / "sft").iterdir()
    assert load_policy(str(run)).spec == load_policy(str(tmp_path / "half.safetensors")).spec
    assert not (run / "report.json").exists()
    assert ("Next:" in out) == (episodes == 0)
