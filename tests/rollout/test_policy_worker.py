"""A policy worker in a separate process infers as the shared module does, also after restarts."""

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.learning.weights import Weights, WeightsDamaged, load_weights, publish_weights
from embodied_rl.assembly import build
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.policy_worker import PolicyWorker, RemotePolicy
from embodied_rl.runtime.processes.handle import RestartLimitReached, WorkerDied
from embodied_rl.runtime.processes.local import LocalRuntime, ProcessHandle
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import Plan, PolicyNode, SamplerNode, SimNode
from tests.support.thread_handle import ThreadHandle

NODE = PolicyNode(
    "pocket",
    freeze_perception=True,
    options={"width": 16, "layers": 1, "heads": 2, "stem_channels": 8, "keypoints": 4, "horizon": 4},
)
KIND = SimulatorKind.find(SimNode("tabletop", options={"horizon": 8, "image_size": 16}))
SPEC, N, T = KIND.spec, 4, 5
PARTS = (NODE, SamplerNode(denoise_steps=2), SPEC, Needs(critic=True))


def learner(seed: int = 0) -> FlowActor:
    torch.manual_seed(seed)
    return build.build_actor(*PARTS)


def collector(actor: FlowActor) -> Collector:
    handles = [KIND.inline(N // 2, f"simulator {part}") for part in range(2)]
    return Collector(handles, SPEC, N // 2, EpisodeSampler(SPEC, 5), Rollout.allocate(actor, T, N), 5)


@pytest.fixture
def remote() -> Any:
    """A policy worker in a process, for an actor of which it knows the shape alone."""
    actor = learner()
    policy = build.build_policy(
        actor, build.Blueprint.of_actor(actor, *PARTS[:3]), Plan(policy="process"), LocalRuntime()
    )
    assert isinstance(policy, RemotePolicy)
    yield policy
    policy.handle.close()


def learn(actor: FlowActor) -> None:
    """Something like an update."""
    with torch.no_grad():
        for parameter in actor.parameters():
            if parameter.requires_grad:
                parameter += 0.01 * torch.ones_like(parameter)
    actor.sampler.noise_level = 0.3
    actor.version += 1


def two_rollouts(policy: Any, actor: FlowActor, refresh: Callable[[], None]) -> list[dict[str, torch.Tensor]]:
    """Collect, learn, and collect again."""
    runs, found = collector(actor), []
    for _ in range(2):
        refresh()
        rollout = runs.collect(policy)
        found.append({name: tensor.clone() for name, tensor in rollout.batch().items()})
        learn(actor)
    return found


def assert_equal(left: list[dict[str, torch.Tensor]], right: list[dict[str, torch.Tensor]]) -> None:
    for one, other in zip(left, right, strict=True):
        assert [name for name, value in one.items() if not torch.equal(value, other[name])] == []


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_another_process_infers_the_same_bits_with_the_newest_weights(remote: RemotePolicy) -> None:
    actor = learner()
    shared = two_rollouts(actor, actor, lambda: None)
    apart = two_rollouts(remote, remote.actor, remote.refresh)
    assert_equal(apart, shared)
    assert shared[0]["version"].unique().tolist() == [0] and shared[1]["version"].unique().tolist() == [1]
    assert remote.restarts == 0


class DyingHandle:
    """A policy worker in this process that dies at given calls; each new one starts with other weights."""

    def __init__(self, *deaths: int) -> None:
        self.deaths, self.calls, self.begun = deaths, 0, 0
        self.restart()

    def restart(self) -> None:
        self.begun += 1
        self.worker = PolicyWorker(learner(seed=self.begun))

    def submit(self, method: str, *args: Any) -> Any:
        self.calls += 1
        return SimpleNamespace(result=partial(self._answer, self.calls, method, *args))

    def _answer(self, call: int, method: str, *args: Any) -> Any:
        if call in self.deaths:
            raise WorkerDied("it died")
        return getattr(self.worker, method)(*args)


@pytest.mark.thorough
@pytest.mark.parametrize("deaths", [(), (1,), (3,), (4, 5), (2, 3, 9, 14, 15)])
def test_a_replaced_worker_gets_all_weights(deaths: tuple[int, ...]) -> None:
    """While it loads, acts or values, and right after: the rollouts are those of the shared module."""
    actor = learner()
    shared = two_rollouts(actor, actor, lambda: None)
    policy = RemotePolicy(DyingHandle(*deaths), learner())  # type: ignore[arg-type]
    assert_equal(two_rollouts(policy, policy.actor, policy.refresh), shared)
    assert policy.restarts == len(deaths)


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_killed_policy_worker_costs_nothing(remote: RemotePolicy) -> None:
    """Killed between two calls, and in the middle of one: the same observation, weights and keys, the same action."""
    assert isinstance(remote.handle, ProcessHandle)
    actor = learner()
    shared = two_rollouts(actor, actor, lambda: None)
    calls, submit = iter(range(1000)), remote.handle.submit

    def killing(method: str, *args: Any) -> Any:
        number = next(calls)
        if number == 3:
            os.kill(remote.handle.pid, signal.SIGKILL)
        future = submit(method, *args)
        if number == 9:
            os.kill(remote.handle.pid, signal.SIGKILL)
        return future

    remote.handle.submit = killing
    assert_equal(two_rollouts(remote, remote.actor, remote.refresh), shared)
    assert remote.restarts == 2


def test_a_policy_worker_that_keeps_dying_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(handle: DyingHandle) -> None:
        raise RestartLimitReached("restarted 3 times within an hour")

    policy = RemotePolicy(DyingHandle(1), learner())  # type: ignore[arg-type]
    monkeypatch.setattr(DyingHandle, "restart", spent)
    with pytest.raises(RestartLimitReached, match="within an hour"):
        policy.refresh()


def test_frozen_weights_are_sent_once_and_trainable_ones_each_time() -> None:
    actor, other = learner(), learner(1)
    everything, learned = publish_weights(actor, 3, everything=True), publish_weights(actor, 3)
    frozen = {name for name, parameter in actor.named_parameters() if not parameter.requires_grad}
    assert frozen and set(everything.tensors) - set(learned.tensors) == frozen
    load_weights(other, everything)
    for name, tensor in actor.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    learn(actor)
    load_weights(other, publish_weights(actor, 4))
    assert all(
        torch.equal(p, dict(other.named_parameters())[n]) for n, p in actor.named_parameters() if n not in frozen
    )


def test_half_precision_arrives_to_the_bit() -> None:
    one, other = torch.nn.Linear(3, 2).bfloat16(), torch.nn.Linear(3, 2).bfloat16()
    load_weights(other, publish_weights(one, 0))
    assert torch.equal(one.weight, other.weight) and one.weight.dtype == torch.bfloat16


def test_damaged_and_foreign_weights_are_refused() -> None:
    network = torch.nn.Linear(3, 2)
    sent = publish_weights(network, 7)
    sent.tensors["weight"][0] ^= 1
    with pytest.raises(WeightsDamaged, match="version 7"):
        load_weights(network, sent)
    with pytest.raises(WeightsDamaged, match="another network"):
        load_weights(network, publish_weights(torch.nn.Linear(4, 2), 7))
    with pytest.raises(WeightsDamaged, match="another network"):
        load_weights(network, publish_weights(torch.nn.Sequential(network), 7))
    assert isinstance(publish_weights(network, 1), Weights)


class Scorer:
    """A role that waits."""

    def __init__(self) -> None:
        self.closed = False

    def score(self, gate: threading.Event | None = None) -> str:
        """At once, or when it is let."""
        assert gate is None or gate.wait(900)
        return "at once" if gate is None else "at last"

    def fail(self) -> None:
        raise ValueError("no such picture")

    def close(self) -> None:
        self.closed = True


def test_one_can_wait_for_whichever_thread_is_first() -> None:
    from embodied_rl.runtime.processes.handle import wait_for_any

    handles = [ThreadHandle(Scorer, f"scorer {number}") for number in range(2)]
    gate = threading.Event()
    calls = [handles[0].submit("score", gate), handles[1].submit("score")]
    wait_for_any(calls)
    assert calls[1].done() and not calls[0].done()
    gate.set()
    assert calls[0].result() == "at last"
    for handle in handles:
        handle.close()
