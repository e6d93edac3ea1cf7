"""Collectors of fakes, small enough to compare every bit of their rollouts."""

import os
import signal
from collections.abc import Sequence
from dataclasses import replace

import torch

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Observation
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.handle import Handle
from embodied_rl.runtime.processes.local import InlineHandle, ProcessHandle
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor

FAKE = "embodied_rl.testing.fake_simulator:FakeSimulator"
CONFIG = FakeSimulator.Config(horizon=10)
SPEC = FakeSimulator.spec_of(CONFIG)
N, T, SEED = 8, 7, 5  # episodes of three decisions: a rollout of seven ends in the middle of one


def inline(parts: int, config: FakeSimulator.Config = CONFIG, kind: type = FakeSimulator) -> list[Handle]:
    return [InlineHandle(lambda: kind(N // parts, config)) for _ in range(parts)]


def workers(parts: int, config: FakeSimulator.Config = CONFIG, **options) -> list[Handle]:
    kwargs = {"num_envs": N // parts, "config": config}
    return [ProcessHandle(FAKE, kwargs, name=f"simulator {part}", **options) for part in range(parts)]


def fast_and_slow() -> list[Handle]:
    """Two workers; the second still simulates for long when the first has finished."""
    slow = {"num_envs": N // 2, "config": replace(CONFIG, seconds=0.03)}
    fast = {"num_envs": N // 2, "config": CONFIG}
    return [ProcessHandle(FAKE, kwargs, name=f"simulator {part}") for part, kwargs in enumerate((fast, slow))]


def make(
    handles: Sequence[Handle],
    *,
    slices: int | None = None,
    decisions: int = T,
    actor: RowwiseFakeActor | None = None,
    group_size: int = 1,
    **options,
) -> tuple[Collector, RowwiseFakeActor]:
    actor = actor or RowwiseFakeActor(SPEC)
    rollout = Rollout.allocate(actor, decisions, N)
    sampler = EpisodeSampler(SPEC, SEED, group_size=group_size)
    return Collector(handles, SPEC, N // (slices or len(handles)), sampler, rollout, SEED, **options), actor


def half_skilled() -> RowwiseFakeActor:
    """Follows the instruction, slowly: some episodes end in success, others at the limit."""
    actor = RowwiseFakeActor(SPEC)
    with torch.no_grad():
        actor.weight[0::2, -2:] = torch.tensor([-0.5, 0.5])  # velocity_x of each step, from "left" and "right"
    return actor


def copied(rollout: Rollout) -> dict:
    """Everything a rollout holds that means something, so that two can be compared."""
    tensors = {name: tensor.clone() for name, tensor in rollout.batch().items()}
    for name in rollout.trace:
        tensors[f"trace/{name}"][~rollout.valid.flatten()] = 0
    return tensors | {"last_value": rollout.last_value.clone(), "finished": list(rollout.finished)}


def assert_equal(left: dict, right: dict) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        same = torch.equal(value, right[name]) if isinstance(value, torch.Tensor) else value == right[name]
        assert same, f"{name} differs"


def reference(rounds: int = 2) -> list[dict]:
    collector, actor = make(inline(1))
    return [copied(collector.collect(actor)) for _ in range(rounds)]


class KillingActor(RowwiseFakeActor):
    """Kills a worker in a given call of `act`.

    With `holds` it stops the worker in the call before, in which its actions are chosen: then it dies with these
    actions, however long the call takes.
    """

    def __init__(self, victim: ProcessHandle, call: int, holds: bool = False):
        super().__init__(SPEC)
        self.victim, self.call, self.holds = victim, call, holds

    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
        self.call -= 1
        if self.call == 1 and self.holds:
            os.kill(self.victim.pid, signal.SIGSTOP)
        if self.call == 0:
            os.kill(self.victim.pid, signal.SIGKILL)
        return super().act(observation, keys, explore)
