"""Training with an inference delay: exactly resumable, wherever rollouts are made, and refused where it cannot be."""

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.assembly.networks import make_backbone
from embodied_rl.checkpoints.policy_file import save_backbone
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.cli.main import main
from embodied_rl.reports.report import Report
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.training.algorithms.batch import find_scored
from embodied_rl.training.algorithms.ppo import PPO
from embodied_rl.training.trainer import Trainer
from embodied_rl_policies.pocket import Pocket
from tests.support.reaching import Reaching, ReachingConfig
from tests.support.running import POLICY, REACHING, SMALL, assert_same, complete, figures, with_plan

pytestmark = pytest.mark.thorough
SIZES = Pocket.Config(width=16, layers=1, heads=2, horizon=7, keypoints=4, stem_channels=8)
TRAINED_TO = 2


@pytest.fixture
def late(tmp_path: Path) -> tuple[str, ...]:
    """The words of a run with a delay of two control steps, of a policy that is trained on prefixes so long."""
    torch.manual_seed(0)
    embodiment = Embodiment.of_simulator(Reaching.spec_of(ReachingConfig()), executed=7, token_length=8)
    network = make_backbone(Pocket, SIZES, embodiment, ())
    network.prefix_trained_to = TRAINED_TO
    save_backbone(tmp_path / "trained.safetensors", network, embodiment, "pocket", asdict(SIZES))
    settings = (word for word in SMALL if word not in POLICY)
    return (*settings, *REACHING, f"policy.checkpoint={tmp_path / 'trained.safetensors'}", "policy.delay=2")


def test_a_stopped_run_keeps_its_plans(
    late: tuple[str, ...], typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each first ratio of its updates is exactly 1; evaluations have the same delay."""
    step, update, checked = Trainer.step, PPO.update, list[int]()

    def interrupted(trainer: Trainer) -> dict[str, float]:
        if trainer.iteration == 3:
            raise KeyboardInterrupt
        return step(trainer)

    def check(method: PPO, segments: Any, iteration: int) -> dict[str, float]:
        segments = [*segments]
        for rollout in segments:
            check_ratios(method, rollout)
            checked.append(int(find_scored(rollout).sum()))
        return update(method, segments, iteration)

    alone = (*late, "plan.ranks=1")
    with monkeypatch.context() as patch:
        patch.setattr(PPO, "update", check)
        assert main(with_plan(["train", *alone, "run.root=straight"])) == 0
    assert len(checked) == 6 and all(checked)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        assert main(with_plan(["train", *alone, "run.root=stopped"])) == 130
    assert main(["train", "resume=last", "run.root=stopped"]) == 0
    straight, stopped = (next((tmp_path / root).glob("*/*")) for root in ("straight", "stopped"))
    assert_same(stopped, straight)
    report = Report.read(straight / "report.json").metadata
    assert (report["delay"], report["strategy"], report["replan"]) == (2, "prefix", 2)
    assert read_metadata(straight / "policy.safetensors").embodiment.executed == 2


def check_ratios(method: PPO, rollout: Rollout) -> None:
    """Recompute each row of a rollout as it was decided, by all environments at once."""
    committed = rollout.trace["flow/committed"]
    assert set(committed.unique().tolist()) == {0, 2}
    for row in range(rollout.decisions):
        with torch.no_grad():
            again = method.actor.evaluate({name: tensor[row] for name, tensor in rollout.trace.items()})
        assert torch.equal((again.log_prob - rollout.log_prob[row]).exp(), torch.ones_like(again.log_prob))
        assert rollout.log_prob[row].abs().sum() > 0


@pytest.mark.process
@pytest.mark.parametrize("plan", ["plan.rollout_workers=1", "plan=split"])
def test_plans_go_with_their_collector(
    plan: str, late: tuple[str, ...], typed: Callable[..., Any], tmp_path: Path
) -> None:
    """Wherever that is, the bits are the same."""
    found = []
    for place, words in (("here", ()), ("there", (plan,))):
        own = (*late, *words, "plan.ranks=1", *(("plan.workers=1",) if plan == "plan=split" else ()))
        run = complete(tmp_path / place, "train", *own)
        found.append([{k: v for k, v in row.items() if not k.startswith("staleness")} for row in figures(run)])
    same = ("update/loss", "rollout/success", "rollout/length", "eval/success")
    for here, there in zip(*found, strict=True):
        assert {key: here[key] for key in same if key in here} == {key: there[key] for key in same if key in there}


REFUSED = [
    (("policy.delay=3",), r"trained to continue 2 committed actions.*algo\.prefix=3"),
    (("policy.delay=2", "policy.executed=6"), r"2 committed and 6 executed actions.*7 of a chunk"),
    (("policy.delay=2", "policy.executed=1"), r"policy\.executed=2 or more"),
    (("policy.checkpoint=null", "policy.horizon=8", "policy.delay=1"), r"trained to continue 0 committed actions"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_impossible_delays_are_refused_before_a_run_starts(
    words: tuple[str, ...], said: str, late: tuple[str, ...], typed: Callable[..., Any], tmp_path: Path
) -> None:
    keys = {word.partition("=")[0] for word in words}
    own = [word for word in late if word.partition("=")[0] not in keys]
    code, _, err = typed("train", *own, *words, "plan.ranks=1")
    assert code == 2 and not (tmp_path / "runs").exists(), err
    assert re.search(said, " ".join(err.split())), err


def test_cloning_knows_no_delay(typed: Callable[..., Any]) -> None:
    code, _, err = typed("sft", "sim=tabletop", "policy.delay=2")
    assert code == 2 and "algo.prefix=2" in err
    code, _, err = typed("sft", "sim=tabletop", "algo.prefix=99", "--dry-run")
    assert code == 2 and "[prefix-too-long]" in err
