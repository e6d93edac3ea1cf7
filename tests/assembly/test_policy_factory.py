"""Policies by a word: a scripted operator is replaced with its simulator; missing files are refused."""

from pathlib import Path
from typing import Any

import pytest

from embodied_rl.assembly.policy_factory import RESTARTS, find_policy_file, open_expert
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.runtime.processes.handle import RestartLimitReached, WorkerDied
from embodied_rl.testing.fake_simulator import FakeSimulator
from embodied_rl_sims.tabletop import Tabletop
from tests.support.refusals import refuses

CONFIG = Tabletop.Config(horizon=40, image_size=16)


class Fragile(Tabletop):
    """A tabletop that dies at the n-th step, or the n-th action of its operator."""

    def __init__(self, num_envs: int, dies: str, at: int) -> None:
        super().__init__(CONFIG, num_envs)
        self.dies, self.left = dies, at

    def _count(self, what: str) -> None:
        self.left -= what == self.dies
        if self.left < 0:
            raise WorkerDied(f"the simulator died when it was asked for {what}")

    def step(self, *args: Any) -> Any:
        self._count("a step")
        return super().step(*args)

    def expert(self, faulty: bool = False) -> Any:
        operator = super().expert(faulty)

        def act() -> Any:
            self._count("an action")
            return operator()

        return act


def run_expert(dies: str, at: list[int]) -> list[EpisodeResult]:
    """Evaluate three episodes; the n-th simulator dies at call at[n], later ones never."""
    build = lambda num_envs: Fragile(num_envs, dies, at.pop(0) if at else 10**9)  # noqa: E731
    policy, handle = open_expert(build, "the simulator")
    spec = Tabletop.spec_of(CONFIG)
    return evaluate_policy(policy, [handle], spec, enumerate_episodes(spec, "eval", 3), 0, 1, None)


@pytest.mark.parametrize("dies", ["a step", "an action"])
def test_results_do_not_depend_on_a_death(dies: str) -> None:
    assert run_expert(dies, [5, 45]) == run_expert(dies, [])


def test_restarts_are_limited() -> None:
    moments = [3] * 99
    with pytest.raises(RestartLimitReached, match=f"died more than {RESTARTS} times"):
        run_expert("a step", moments)
    assert len(moments) == 99 - 1 - RESTARTS, "one at first, and as many as may take its place"


def test_a_simulator_without_an_operator_is_refused() -> None:
    with refuses("operator-missing", "policy=expert"):
        open_expert(FakeSimulator, "the simulator")


def test_missing_policy_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "last").write_text("00000044")  # names a run's last checkpoint
    for path in (tmp_path / "policy.safetensors", tmp_path / "last" / "policy.safetensors"):
        with refuses("checkpoint-missing", path):
            find_policy_file(str(path))
    for text in ("ws://127.0.0.1:8000", "random"):
        with refuses("policy-not-a-file", text):
            find_policy_file(text)
