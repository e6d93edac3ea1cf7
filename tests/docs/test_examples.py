"""The program of docs/examples runs on the simulator's environments, with a stand-in for Stable-Baselines3."""

import re
import runpy
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.pages import DOCS


class RandomPolicy:
    """Has the members of PPO that the example uses; acts at random and learns nothing."""

    def __init__(self, policy: str, environments: Sequence[Any], **settings: Any) -> None:
        self.environments = environments

    def learn(self, steps: int) -> None:
        for environment in self.environments:
            environment.reset(seed=0)
            for _ in range(steps // len(self.environments)):
                _, reward, *_ = environment.step(environment.action_space.sample())
                assert abs(reward) < 1


def play(model: RandomPolicy, environments: Sequence[Any], episodes: int, **settings: Any) -> tuple[float, float]:
    """Return the mean return of one episode, and 0."""
    environment, total, over = environments[0], 0.0, False
    environment.reset(seed=0)
    while not over:
        _, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
        total, over = total + reward, terminated or truncated
    return total, 0.0


@pytest.mark.thorough
def test_stable_baselines3_gets_its_environments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gymnasium = pytest.importorskip(
        "gymnasium", reason="gymnasium is not installed: pip install 'embodied-rl[gymnasium]'"
    )

    def make(name: str, count: int, seed: int, env_kwargs: dict[str, Any]) -> list[Any]:
        return [gymnasium.make(name, **env_kwargs) for _ in range(count)]

    members = {"": {"PPO": RandomPolicy}, ".common": {}, ".common.env_util": {"make_vec_env": make}}
    for name, each in (members | {".common.evaluation": {"evaluate_policy": play}}).items():
        monkeypatch.setitem(sys.modules, f"stable_baselines3{name}", SimpleNamespace(**each))
    runpy.run_path(str(DOCS / "examples/sb3_tabletop.py"))["main"](0, 16)
    assert re.fullmatch(r"seed 0, 16 control steps: [01]0*\.0% before, [01]0*\.0% after\n", capsys.readouterr().out)
