"""A scripted operator and its simulator are replaced together when their process dies."""

from pathlib import Path
from typing import Any

import pytest

from embodied_rl.assembly.acting import RESTARTS, find_policy_file, open_expert
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.interfaces.errors import UserError
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.runtime.processes.handle import RestartLimitReached, WorkerDied
from embodied_rl.testing.fake_simulator import FakeSimulator
from embodied_rl_sims.tabletop import Tabletop

CONFIG = Tabletop.Config(horizon=40, image_size=16)


class Fragile(Tabletop):
    """A tabletop whose process dies when its operator, or the simulator, is asked for the n-th time."""

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
    """Three episodes; the simulators that are built one after another die at these calls, the ones after them never."""
    build = lambda num_envs: Fragile(num_envs, dies, at.pop(0) if at else 10**9)  # noqa: E731
    policy, handle = open_expert(build, "the simulator")
    spec = Tabletop.spec_of(CONFIG)
    return evaluate_policy(policy, [handle], spec, enumerate_episodes(spec, "eval", 3), 0, 1, None)


@pytest.mark.parametrize("dies", ["a step", "an action"])
def test_a_death_costs_time_alone(dies: str) -> None:
    assert run_expert(dies, [5, 45]) == run_expert(dies, [])


def test_one_that_dies_again_and_again_is_given_up() -> None:
    moments = [3] * 99
    with pytest.raises(RestartLimitReached, match=f"died more than {RESTARTS} times"):
        run_expert("a step", moments)
    assert len(moments) == 99 - 1 - RESTARTS, "one at first, and as many as may take its place"


def test_a_simulator_without_an_operator_is_refused() -> None:
    with pytest.raises(UserError, match="no scripted operator"):
        open_expert(FakeSimulator, "the simulator")


def test_a_policy_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Also below a file, such as the one that names a run's last checkpoint."""
    (tmp_path / "last").write_text("00000044")
    for path in (tmp_path / "policy.safetensors", tmp_path / "last" / "policy.safetensors"):
        with pytest.raises(UserError, match=f"There is no policy file {path}"):
            find_policy_file(str(path))
