"""The same seed gives the same run, to the bit: twice, and across a stop anywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli.main import main
from tests.support.running import ITERATIONS, REACHING, SMALL, TABLETOP, assert_same, complete, complete_anew, figures
from tests.support.stopping import assert_stopped_goes_on_alike


@pytest.mark.thorough
@pytest.mark.process
def test_the_same_seed_twice(reference: Path, tmp_path: Path) -> None:
    """In new interpreters, whose `hash` is another one each time, and in one that was forked."""
    assert [row["iteration"] for row in figures(reference)] == list(range(1, ITERATIONS + 1))
    assert_same(complete_anew(tmp_path, "train", *SMALL, *TABLETOP), reference)


REPLAY = ("algo.steps=6", "algo.check_every=2", "algo.held_out=0.3")
KINDS = {
    "grpo": ("algo=grpo", "algo.group_size=4", "algo.minibatch=16"),
    "grpo, waiting": ("algo=grpo", "algo.group_size=4", "algo.dynamic_sampling=3", "checkpoint.every=1"),
    "nft": ("algo=nft", "algo.minibatch=16"),
    "tokens": ("algo=ppo", "policy=pocket_tokens", "policy.bins=16", "algo.entropy=0.01"),
    "tokens, groups": ("algo=grpo", "policy=pocket_tokens", "algo.sampler.name=tokens", "algo.group_size=4"),
    "tokens, replay": (
        "algo=filtered", "policy=pocket_tokens", "algo.sampler.name=tokens", "algo.sampler.temperature=0.1", *REPLAY
    ),
    "noise, prefix critic": ("algo=flow_noise", "policy.critic=prefix", "algo.entropy=0.01"),
    "full chain, expert critic": (
        "algo.sampler.layers=full", "algo.sampler.step_weights=null", "policy.critic=expert", "algo.noise_final=0.5"
    ),
    "replay": ("algo=filtered", *REPLAY),
    "replay, rewound": (
        "algo=awr", *REPLAY, "algo.critic_steps=4", "train.eval_every=0", "checkpoint.every=2", "replay.capacity=8"
    ),
    "replay, critic": ("algo=awr", "algo.steps=6", "algo.critic_steps=4"),
    "replay, labels": ("algo=recap", *REPLAY, "algo.critic_steps=4", "algo.guidance=2"),
    "replay, no checkpoint yet": ("algo=filtered", *REPLAY, "checkpoint.every=10", "train.eval_every=0"),
    "start noise": ("algo=dsrl", "algo.updates=3", "algo.hidden=16"),
    "start noise, stored": ("algo=dsrl", "algo.variant=sac", "algo.updates=3", "policy.critic=prefix"),
    "late starts": ("train.late_starts=0.5", "train.late_decisions=1", "seed=2"),
    "late groups": ("algo=grpo", "algo.group_size=2", "train.late_starts=0.5", "train.late_decisions=1", "seed=2"),
    "learning progress": ("curriculum=learning_progress", "curriculum.rate=0.5"),
    "curriculum": ("curriculum=success_rate", "curriculum.rate=0.5"),
    "frozen perception, slices": ("policy.freeze_perception=true", "plan.slices=2", "algo.critic_replay=2"),
}  # fmt: skip

WITHOUT_CRITIC = tuple(
    kind
    for kind, words in KINDS.items()
    if not {"algo=grpo", "algo=filtered", "algo=awr", "algo=dsrl", "algo=nft", "algo=recap"}.isdisjoint(words)
)
"""Methods without the keys of PPO's critic."""


@pytest.mark.thorough
@pytest.mark.process
def test_a_policy_in_a_separate_process_changes_no_bit(split_reference: Path, tmp_path: Path) -> None:
    settings = ("plan=split", "plan.policy=process")
    assert_same(complete(tmp_path, "train", *SMALL, *TABLETOP, *settings), split_reference)


QUICK = ("grpo", "noise, prefix critic", "replay, critic", "start noise", "curriculum")
"""Kinds that run by default: one of each source of experience."""


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.thorough] * (kind not in QUICK)) for kind in KINDS]
)
def test_a_stopped_run_continues_as_if_nothing_had_happened(
    kind: str, typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each method, sampler and critic."""
    own = [key.partition("=")[0] for key in KINDS[kind]]
    critic = [setting for setting in SMALL if "critic" not in setting or kind not in WITHOUT_CRITIC]
    settings = (*(s for s in critic if s.partition("=")[0] not in own), *REACHING, "plan.ranks=1", *KINDS[kind])
    straight = assert_stopped_goes_on_alike(settings, tmp_path, monkeypatch)
    assert any(row.get("rollout/success", 0) > 0 for row in figures(straight))


@pytest.mark.thorough
def test_another_seed_gives_another_run(typed: Callable[..., Any], tmp_path: Path) -> None:
    """Otherwise equality would mean nothing."""
    for seed in (0, 1):
        alone = (*SMALL, *REACHING, "plan=colocated", "plan.ranks=1")
        assert main(["train", *alone, f"run.root=runs{seed}", f"seed={seed}"]) == 0
    with pytest.raises(AssertionError):
        assert_same(*(next((tmp_path / f"runs{seed}").glob("*/*")) for seed in (0, 1)))


def test_grpo_counts_every_step_it_simulated(typed: Callable[..., Any], tmp_path: Path) -> None:
    """Also those of groups it does not learn from: episodes are whole, so their lengths add up to all steps."""
    settings = [setting for setting in SMALL if "critic" not in setting]
    code, _, err = typed("train", *settings, *REACHING, "plan.ranks=1", "algo=grpo", "algo.group_size=4")
    assert code == 0, err
    rows = figures(next((tmp_path / "runs").glob("*/*")))
    lengths = sum(row["rollout/length"] * row["rollout/episodes"] for row in rows)
    assert rows[-1]["total/control_steps"] == pytest.approx(lengths)
    assert rows[-1]["total/episodes"] == 8 * ITERATIONS
    assert any(row["update/kept_share"] < 1 for row in rows)
