"""A policy learns on a robot in lockstep what it learns in the simulator, and from its own steps alone."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from embodied_rl.cli import run_command
from embodied_rl.cli.command import list_commands
from embodied_rl.cli.main import main
from embodied_rl.commands.preparation import compose_config
from embodied_rl.interfaces.sim import SimulatorLimits, Source
from embodied_rl.mathematics.objectives.losses import step_mask
from embodied_rl.reports.audit_section import summarise_audit
from embodied_rl.reports.report import Report
from embodied_rl.robot_simulator.simulator import RobotSimulator
from embodied_rl.rollout.replay.format import FieldKind
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import TrainConfig
from embodied_rl.training.algorithms.batch import as_batch
from embodied_rl.training.algorithms.filtered import Filtered
from embodied_rl.training.algorithms.recap import POSITIVE
from embodied_rl.training.loop import evaluate_before
from embodied_rl.training.planner.plan_selection import resolve_plan
from embodied_rl.training.run_checks import check_limits
from embodied_rl.training.run_parts import assemble_parts
from embodied_rl.training.trainer import Trainer
from tests.support.refusals import refuses
from tests.support.running import SMALL, started

pytestmark = pytest.mark.thorough
FEW = ("train.decisions=30", "train.iterations=2", "policy.critic=prefix", "algo.critic_warmup=0", "algo.minibatch=8")
BESIDE = ("plan=colocated", "plan.ranks=1", "plan.rollout_workers=1", "mode=async")
OWN = ("sim=tabletop", "sim.num_envs=1", "plan=colocated", "plan.ranks=1")
STORED = (
    *(word for word in SMALL if not word.startswith(("sim.", "algo.", "policy.critic"))), "sim=robot",
    "sim.human=scripted", "+sim.simulated={progress: true}", "algo=filtered", "algo.steps=2", "plan=colocated",
    "plan.ranks=1",
)  # fmt: skip
"""A run with a human that learns from what is stored."""


def configure(*words: str) -> TrainConfig:
    """A small run of one environment."""
    command = list_commands()["train"]
    told = (*(word for word in SMALL if not word.startswith("sim.")), *FEW, *words)
    config = run_command.freeze_command_config(command, compose_config(command.config, told, command.values), told)
    return run_command.load_preparation(command).check(config)[0]


def learn(
    config: TrainConfig, folder: Path, between: Callable[[Trainer], object] = lambda _: None
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Two iterations, with a call between them: the weights after them, and the rollouts."""
    torch.set_num_threads(1)
    parts = assemble_parts(resolve_plan(config)[0], RunFolder.create(folder, "test", 0), Ranks())
    trainer, rollouts = Trainer(parts), list[dict[str, Tensor]]()
    update = trainer.algorithm.update

    def note(segments, iteration: int) -> dict[str, float]:
        (rollout,) = segments
        learnt = as_batch(rollout, torch.zeros_like(rollout.value)).mask
        rollouts.append({name: tensor.clone() for name, tensor in rollout.batch().items()} | {"learnt": learnt})
        return update([rollout], iteration)

    trainer.algorithm.update = note  # type: ignore[method-assign]
    try:
        figures = [trainer.step()]
        between(trainer)
        figures.append(trainer.step())
    finally:
        parts.close()
    assert all(np.isfinite(value) for each in figures for name, value in each.items() if name.startswith("update/"))
    return {name: each.detach().clone() for name, each in trainer.actor.named_parameters()}, rollouts


@pytest.mark.process
def test_learning_on_a_robot_in_lockstep_is_learning_in_its_simulator(tmp_path: Path) -> None:
    own, theirs = learn(configure(*OWN), tmp_path / "own")
    ours, mine = learn(configure("sim=robot"), tmp_path / "robot")
    for one, other in zip(mine, theirs, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert (one["source"] == int(Source.POLICY)).float().mean() > 0.9
    assert all(torch.allclose(ours[name], weights, atol=1e-6) for name, weights in own.items())
    begun = dict(learn_nothing(tmp_path / "begun"))
    assert any(not torch.equal(begun[name], weights) for name, weights in own.items()), "something was learnt"


def learn_nothing(folder: Path) -> list[tuple[str, Tensor]]:
    """The weights before the first iteration."""
    parts = assemble_parts(configure(*OWN), RunFolder.create(folder, "test", 0), Ranks())
    try:
        return [(name, each.detach().clone()) for name, each in parts.actor.named_parameters()]
    finally:
        parts.close()


@pytest.mark.process
def test_a_robot_that_is_elsewhere_is_opened_once_and_training_goes_on_after_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[RobotSimulator]()
    build = RobotSimulator.__init__

    def note(robot: RobotSimulator, *arguments: Any) -> None:
        opened.append(robot)
        build(robot, *arguments)

    monkeypatch.setattr(RobotSimulator, "__init__", note)
    monkeypatch.setattr(RobotSimulator, "limits", staticmethod(lambda _: SimulatorLimits(1, one_robot=True)))
    progress: Any = SimpleNamespace(begin_phase=lambda *_, **__: None, note=lambda _: None)
    config = configure("sim=robot", "train.decisions=8", "train.final_episodes=1", "train.film=true")
    _, rollouts = learn(config, tmp_path, lambda trainer: evaluate_before(trainer, progress))
    (report,) = tmp_path.rglob("before/report.json")
    assert len(opened) == 1 and len(Report.read(report).episodes) == 1
    assert all((rollout["steps"] > 0).all() for rollout in rollouts), "each decision moved the robot"
    assert (rollouts[1]["source"] == int(Source.POLICY)).float().mean() > 0.9


@pytest.mark.process
def test_a_robot_that_a_rollout_worker_holds_is_lent_to_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first rollout and between two, while the worker is ahead; no other is opened here."""
    monkeypatch.setattr(RobotSimulator, "limits", staticmethod(lambda _: SimulatorLimits(1, one_robot=True)))
    monkeypatch.setattr(RobotSimulator, "__init__", None)
    words = ("sim=robot", "train.decisions=8", "train.iterations=4", *BESIDE)
    parts = assemble_parts(configure(*words), RunFolder.create(tmp_path, "test", 0), Ranks())
    trainer = Trainer(parts)
    try:
        before = trainer.evaluate(1, "report")
        figures = [trainer.step(), trainer.step()]
        between = trainer.evaluate(2, "select")
        figures += [trainer.step(), trainer.step()]
        rollout: Any = parts.experience
        assert (rollout._rollouts[0].steps > 0).all(), "each decision moved the robot, after the evaluation, too"
    finally:
        parts.close()
    assert [len(before), len(between)] == [1, 2] and all(result.steps > 0 for result in (*before, *between))
    assert [each["total/decisions"] for each in figures] == [8, 16, 24, 32]
    assert all(each["staleness/max"] <= 1 and each["workers/restarts"] == 0 for each in figures)


def test_a_human_may_take_as_long_as_a_rollout_worker_may_be_silent() -> None:
    """Half of what is left of 600 s after the start; without a worker nothing counts as hung."""
    real = ("sim=robot", "sim.simulator=null", "sim.transport=dds", "sim.lockstep=false", "sim.tasks=[push it]")
    with refuses("attend-too-long", "sim.attend=600", "plan.call_timeout=150"):
        check_limits(configure(*real, *BESIDE))
    check_limits(configure(*real, *BESIDE, "plan.call_timeout=150"))
    check_limits(configure(*real))


def test_a_robot_has_one_environment_which_is_checked_before_the_start() -> None:
    """The demo has 96; two ranks may have a simulated robot each."""
    for words in (
        ("sim.num_envs=2",),
        ("sim.num_envs=96", "plan=colocated", "plan.ranks=2"),
        ("sim.num_envs=2", "plan=auto"),
    ):
        with refuses("num-envs-invalid"):
            check_limits(configure("sim=robot", *words))
    check_limits(configure("sim=robot", "sim.num_envs=2", "plan=colocated", "plan.ranks=2"))


def test_robot_and_human_are_settings_of_the_simulator(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sim=robot", "robot=so101", "human=scripted")
    assert main(["train", *words, "--cfg", "job"]) == 0
    composed = yaml.safe_load(capsys.readouterr().out)
    assert (composed["sim"]["robot"], composed["sim"]["human"]) == ("so101", "scripted")
    for command, word in (("train", "human=scripted"), ("train", "robot=tabletop"), ("eval", "robot=tabletop")):
        assert main([command, word, "--dry-run"]) == 2
        assert f"[robot-without-sim] {word} is a setting of sim=robot: add sim=robot." in capsys.readouterr().err


def test_a_policy_is_evaluated_without_the_scripted_human() -> None:
    """Its help would count as the policy's success; the robot is the same."""
    kind = SimulatorKind.find(configure("sim=robot", "sim.human=scripted").sim)
    alone = kind.without_human()
    assert (kind.options.human, alone.options.human) == ("scripted", "none")
    assert alone.spec == kind.spec and alone.without_human() is alone


@pytest.mark.process
def test_what_a_human_did_is_kept_and_not_learnt_from(tmp_path: Path) -> None:
    words = ("sim=robot", "sim.human=scripted", "+sim.simulated={progress: true}")
    _, rollouts = learn(configure(*words), tmp_path)
    sources = torch.cat([rollout["source"].flatten() for rollout in rollouts])
    assert {int(Source.POLICY), int(Source.HUMAN)} <= set(sources.tolist())
    for rollout in rollouts:
        executed = step_mask(rollout["steps"], rollout["source"].shape[-1])
        assert torch.equal(rollout["learnt"], executed & (rollout["source"] == int(Source.POLICY)))
        alone = (rollout["source"] == int(Source.HUMAN)).all(-1)
        assert alone.any() and not rollout["learnt"][alone].any()


@pytest.mark.process
def test_a_killed_run_says_who_acted_before_and_after(tmp_path: Path) -> None:
    """No line is lost or written twice. All but the chunks of one episode are stored, too."""
    words = (*STORED, "train.decisions=30", "train.iterations=3", "checkpoint.every=1", "train.film=false")
    with started(tmp_path, "train", *words) as process:

        def in_an_episode() -> bool:
            events = [] if process.run is None else read_chunks(process.run)
            return process.iterations() > 0 and len(events) > 40 and events[-1]["end"] is None

        assert process.wait_until(in_an_episode), process.output()
        process.kill()
        run = process.run
        assert run is not None
        before = {path.name: path.read_bytes() for path in (run / "audit").iterdir()}
    with started(tmp_path, "train", f"resume={run}") as process:
        code, output = process.finish()
    assert code == 0, output
    for name, lines in before.items():
        after = (run / "audit" / name).read_bytes()
        assert after.startswith(lines) and b"" not in after.splitlines()
    events, found = read_chunks(run), summarise_audit(run)
    assert found is not None and found.damaged == 0 and found.cut >= 1
    assert found.restarts == [1] or found.restarts == [2]
    assert f"The run was restarted after iteration {found.restarts[0]}" in output.split("Report:")[0]
    assert found.steps["training"].total() == sum(steps for event in events for _, steps in event["by"])
    assert found.evaluated == 2 * 4 + 4, "before, after, and of the last iteration"
    assert found.steps["training"]["human"] > 0 == found.steps["evaluations"]["human"], "no help counts as success"
    rows = np.load(run / "replay" / "collector_0" / "kind.npy") == FieldKind.COMPLETE
    assert 0 <= len(events) - rows.sum() <= 30
    page = (run / "report.html").read_text()
    assert all(line in page for line in found.describe())


def read_chunks(run: Path) -> list[dict[str, Any]]:
    """What was executed in training; without half a line that is being written."""
    file = run / "audit" / "collector_0.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def test_what_a_robot_did_before_a_stop_is_learned_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The episodes of an iteration that was not finished stay, and the audit says who acted in all of them."""
    words = (*STORED, "train.decisions=30", "train.iterations=2", "checkpoint.every=1")
    monkeypatch.chdir(tmp_path)
    update = Filtered.update

    def interrupted(learner: Filtered, replay: Any, iteration: int) -> Any:
        if iteration == 1:
            raise KeyboardInterrupt
        return update(learner, replay, iteration)

    with monkeypatch.context() as patch:
        patch.setattr(Filtered, "update", interrupted)
        assert main(["train", *words, "run.root=halted"]) == 130
    (run,) = Path("halted").glob("*/*")
    field = {name: np.load(run / "replay" / "collector_0" / f"{name}.npy") for name in ("kind", "steps", "source")}
    assert (field["kind"] == FieldKind.COMPLETE).sum() == 60, "both iterations were collected, and one was learned"
    assert main(["train", "resume=last", "run.root=halted"]) == 0
    field = {name: np.load(run / "replay" / "collector_0" / f"{name}.npy") for name in field}
    rows = field["kind"] == FieldKind.COMPLETE
    stored = zip(field["steps"][rows], field["source"][rows], strict=True)
    lines = [json.loads(line) for line in (run / "audit" / "collector_0.jsonl").read_text().splitlines()]
    acted = [[name for name, count in line["by"] for _ in range(count)] for line in lines]
    assert len(acted) == 90
    assert acted == [[Source(number).name.lower() for number in source[:steps]] for steps, source in stored]
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["rollout/interventions"] for row in found) > 0
    audit = summarise_audit(run)
    assert audit is not None and audit.restarts == [1] and audit.steps["training"].total() == sum(map(len, acted))
    assert all(0 < row["rollout/by_human"] < 1 for row in found)


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "length", "beside"),
    [
        pytest.param("dsrl", "algo.updates=3", BESIDE, id="dsrl, while the robot works"),
        pytest.param("recap", "algo.steps=3", (), id="recap, in turns"),
        pytest.param("dsrl", "algo.updates=3", (), id="dsrl, in turns", marks=pytest.mark.slow),
        pytest.param("recap", "algo.steps=3", BESIDE, id="recap, while the robot works", marks=pytest.mark.slow),
    ],
)
def test_methods_on_replay_store_who_acted_and_learn_what_a_human_did(
    name: str, length: str, beside: tuple[str, ...], tmp_path: Path
) -> None:
    """RECAP labels every decision that a human took part in as positive."""
    command = list_commands()["train"]
    told = (
        *(word for word in SMALL if not word.startswith(("sim.", "algo.", "policy.critic"))), "train.decisions=30",
        "train.iterations=2", "sim=robot", "sim.human=scripted", "+sim.simulated={progress: true}", f"algo={name}",
        length, "policy.critic=prefix", *beside,
    )  # fmt: skip
    config = run_command.freeze_command_config(command, compose_config(command.config, told, command.values), told)
    config = run_command.load_preparation(command).check(config)[0]
    parts = assemble_parts(resolve_plan(config)[0], RunFolder.create(tmp_path, "test", 0), Ranks())
    try:
        trainer, replay = Trainer(parts), parts.replay
        figures = [trainer.step() for _ in range(2)]
        assert replay is not None and figures[1]["update/steps"] == 3
        where = replay.list_decisions(0, replay.list_episodes(0))
        sources = replay.read_field("source", where)
        helped = (sources == int(Source.HUMAN)).any(axis=1)
        assert helped.any() and (sources == int(Source.POLICY)).any()
        _, chunks, learned = replay.read_chunks(where[helped], sources.shape[1])
        assert (learned == int(Source.HUMAN)).any() and np.isfinite(chunks).all()
        if name == "recap":
            algorithm: Any = parts.algorithm
            chosen, _ = algorithm.weigh(replay, 2)
            labels = {tuple(row): label for row, label in zip(chosen.where.tolist(), chosen.condition, strict=True)}
            assert {labels[tuple(row)] for row in where[helped].tolist()} == {POSITIVE}
    finally:
        parts.close()
