"""Writers of scores beside a collector of fakes, whose pictures show which observation they are of."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.sim import Observation
from embodied_rl.judge.reward.scoring_writer import ScoringOptions, ScoringWriter
from embodied_rl.rollout.collector import Collector
from embodied_rl.schema import ProbesNode, RewardNode
from embodied_rl.testing.fakes import FakeSimulator
from tests.support.collecting import SPEC, T, half_skilled, inline, make

GAMMA = 0.9
NODE = RewardNode(name="told", weight=0.5, wait_share=None, deadline=60.0, in_flight=8, probes=ProbesNode(mismatch=0.0))


class Coded(FakeSimulator):
    """Each picture shows a code of its own, and the state's last entry says which."""

    def _observe(self) -> Observation:
        seen = super()._observe()
        codes = self._code()
        pictures = np.broadcast_to(codes[:, None, None, None], seen.images["top"].shape).copy()
        state = seen.state.copy()
        state[:, 2] = codes / np.float32(255)
        return replace(seen, images={"top": pictures}, state=state)

    def _code(self) -> np.ndarray:
        """Follows from the physics, so that it comes out alike wherever it is drawn."""
        mixed = np.abs(self._position[:, 0] * 7919 + self._position[:, 1] * 104729 + self._steps * 31)
        return (mixed * 1000 % 256).astype(np.uint8)


def make_writer(
    folder: Path, scorer: Any, node: RewardNode = NODE, config: Any = None, number: int = 0, **options: Any
) -> ScoringWriter:
    """One of a run in `folder`, whose only collector it belongs to."""
    given = {"discount": Discount(GAMMA, "control_step"), "limit_ends": False} | options
    made = ScoringOptions(
        node, (lambda _config, _spec: scorer, config), SPEC, T, collectors=1, folder=str(folder), **given
    )
    return ScoringWriter(made, number)


def start(writer: ScoringWriter, parts: int = 2, **options: Any) -> tuple[Collector, Any]:
    """A collector of coded pictures beside a writer, and its actor."""
    return make(inline(parts, kind=Coded), actor=half_skilled(), writers=[writer], **options)


def collect(collector: Collector, actor: Any, rounds: int = 3) -> list[dict[str, Any]]:
    """Return what the writer and the simulator said of each rollout."""
    kept = (
        "valid",
        "episode",
        "decision",
        "terminated",
        "truncated",
        "steps",
        "shaping",
        "reward",
        "bonus",
        "ignore_env_reward",
    )
    found = []
    for _ in range(rounds):
        rollout = collector.collect(actor)
        codes = rollout.trace["input/features"][..., 2].clone().numpy()
        found.append({name: getattr(rollout, name).clone().numpy() for name in kept} | {"code": codes})
    return found
