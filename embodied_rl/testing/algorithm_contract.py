"""The contract of a learning algorithm, as checks for its author's tests.

An algorithm learns for a few iterations in a small simulator, in which some control steps are a human's or a safety
filter's. Outcomes follow from the episodes alone, so that everything may be changed that should not matter.

Shapes: T decisions, N environments, Hx executed actions, D' scored entries of an action.
"""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, is_dataclass, replace
from functools import cached_property
from itertools import count
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.policy import Actor, Evaluation, Trace
from embodied_rl.interfaces.sim import SimulatorSpec, Source
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.replay.experience import Replay, list_stored
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.testing.fake_actor import RowwiseFakeActor, StepActor
from embodied_rl.testing.fake_simulator import InterruptedSimulator

ENVS, DECISIONS, SEED = 8, 4, 5
_OTHER_SEEDS = count(100)


def check_algorithm(
    kind: type[Any],
    config: Any,
    build: Callable[[SimulatorSpec], Actor] = RowwiseFakeActor,
    *,
    learns: Collection[Source] = (Source.POLICY,),
) -> None:
    """Check an algorithm against `interfaces.algorithm`, in some seconds.

    Args:
        kind: its class, an `AlgorithmKind`.
        config: its settings; few optimiser steps are enough.
        build: returns a new actor that the algorithm can train, always with the same weights; here for a
            `FakeSimulator`.
        learns: whose control steps it learns from, as it documents: of these the executed actions count, and of no
            others. From rollouts it is usually the policy's alone.

    Raises:
        AssertionError: the contract is broken.
    """
    check = AlgorithmCheck(kind, config, build, frozenset(learns))
    check.figures_are_finite()
    check.experience_is_left_as_it_was()
    check.equal_seeds_give_equal_bits()
    check.a_restored_state_continues_to_the_bit()
    check.only_declared_parameters_change()
    check.nothing_is_learned_from_nothing()
    check.what_is_not_needed_is_not_read()
    check.sources_count_as_documented()


class Run:
    """An algorithm with its actor, simulator and experience, at the beginning of `iteration`."""

    def __init__(self, check: "AlgorithmCheck", embodiment: Any = None, **simulator: Any) -> None:
        self.needs, self.iteration = check.needs, 0
        envs = self.needs.group_size * max(1, ENVS // self.needs.group_size)
        made = InterruptedSimulator(envs, **simulator)
        self.actor = check.build(made.spec)
        if embodiment is not None:
            self.actor.embodiment = embodiment
        self.learner = check.start(self.actor)
        self.groups = {id(p): name for name, group in self.actor.parameter_groups().items() for p in group}
        self.first = {name: value.detach().clone() for name, value in self.actor.named_parameters()}
        executed = self.actor.log_prob_shape()[0]
        decisions = max(DECISIONS, made.spec.horizon // executed)
        decisions = self.needs.count_decisions(decisions, made.spec.horizon, executed)
        self.rollout = Rollout.allocate(self.actor, decisions, envs)
        extra = list_stored(self.actor, self.needs.stores)
        self.storage = ReplayStorage(ReplayFormat.of_simulator(made.spec, envs, 200, executed, extra=extra))
        episodes = EpisodeSampler(made.spec, SEED, group_size=self.needs.group_size)
        self._collector = Collector(
            [InlineHandle(lambda: made)], made.spec, envs, episodes, self.rollout, SEED, writers=[self.storage],
            fresh=self.needs.fresh_episodes, explore=self.needs.explores_with(self.actor),
        )  # fmt: skip

    def collect(self) -> Any:
        """Collect the experience of the iteration, and return what the algorithm learns from."""
        self.actor.version = self.iteration
        self.learner.prepare(self.iteration)
        self._collector.collect(self.actor)
        if self.needs.learns_from == "rollouts":
            return [self.rollout]
        return Replay(self.storage, collected=int(self.rollout.valid.sum()))

    def update(self, experience: Any) -> dict[str, float]:
        """Learn from the experience of the iteration; return its figures."""
        given = experience if self.needs.learns_from == "replay" else iter(experience)
        figures = self.learner.update(given, iteration=self.iteration)
        self.iteration += 1
        return figures

    def go_on(self, iterations: int) -> list[dict[str, float]]:
        """Collect and learn; return the figures of each iteration."""
        return [self.update(self.collect()) for _ in range(iterations)]

    def bits(self) -> dict[str, Tensor]:
        """Return copies of the actor's tensors and of the algorithm's state."""
        own = {f"algorithm/{name}": value for name, value in self.learner.state().items()}
        return {name: value.detach().clone() for name, value in (dict(self.actor.state_dict()) | own).items()}

    def find_changed(self) -> set[str]:
        """Return the groups of the parameters that have changed, "frozen" for those that are in none."""
        pairs = [(each, self.first[name]) for name, each in self.actor.named_parameters()]
        return {self.groups.get(id(each), "frozen") for each, first in pairs if not torch.equal(each, first)}


@dataclass
class AlgorithmCheck:
    """The checks of one algorithm; each can be called alone."""

    kind: type[Any]
    config: Any
    build: Callable[[SimulatorSpec], Actor] = RowwiseFakeActor
    learns: frozenset[Source] = frozenset({Source.POLICY})

    def __post_init__(self) -> None:
        assert is_dataclass(self.config) and isinstance(self.config, self.kind.Config), "settings must be a `Config`"
        self.needs = self.kind.needs(self.config)
        assert self.needs.learns_from != "demonstrations", "learning from demonstrations has no contract"

    def start(self, actor: Actor) -> Any:
        """Return a new algorithm that trains an actor: its random weights follow from the seed, its draws must."""
        torch.manual_seed(SEED)
        learner = self.kind(self.config, actor, Ranks(), SEED, self.needs.warmup + 3)
        for generator in (torch.manual_seed, np.random.seed, random.seed):
            generator(next(_OTHER_SEEDS))
        return learner

    @cached_property
    def usual(self) -> tuple[Run, list[dict[str, float]]]:
        """A run of the iterations that do not train the policy and two more, and their figures."""
        run = Run(self)
        return run, run.go_on(self.needs.warmup + 2)

    def figures_are_finite(self) -> None:
        for iteration, figures in enumerate(self.usual[1]):
            wrong = {name: value for name, value in figures.items() if not isfinite(value)}
            assert not wrong, f"figures of iteration {iteration} are not finite: {wrong}"

    def experience_is_left_as_it_was(self) -> None:
        """Check that an update writes nothing to its experience, and evaluates each row `epochs` times at most."""
        run, seen = Run(self), list[int]()
        run.go_on(self.needs.warmup)
        experience = run.collect()
        before, stored = {name: value.clone() for name, value in run.rollout.tensors().items()}, run.storage.checksum()
        evaluate = run.actor.evaluate

        def count_rows(trace: Trace) -> Evaluation:
            seen.append(len(next(iter(trace.values()))) * torch.is_grad_enabled())
            return evaluate(trace)

        run.actor.evaluate = count_rows
        run.update(experience)
        _assert_equal(run.rollout.tensors(), before, "an update changes the rollout")
        assert run.storage.checksum() == stored, "an update changes the replay storage"
        most = self.needs.epochs * run.rollout.valid.numel()
        assert self.needs.learns_from == "replay" or sum(seen) <= most, (
            f"{sum(seen)} rows are evaluated, more than the {most} of needs.epochs={self.needs.epochs}"
        )

    def equal_seeds_give_equal_bits(self) -> None:
        """Check that all draws follow from seed and iteration, whatever the global generators hold."""
        run, figures = self.usual
        again = Run(self)
        assert again.go_on(len(figures)) == figures, "equal seeds give different figures"
        _assert_equal(again.bits(), run.bits(), "equal seeds give different bits")

    def a_restored_state_continues_to_the_bit(self) -> None:
        first = Run(self)
        first.go_on(self.needs.warmup + 1)
        second = Run(self, embodiment=getattr(first.actor, "embodiment", None))  # a part of the policy's file
        saved = {name: value.clone() for name, value in first.learner.state().items()}
        second.actor.load_state_dict(first.actor.state_dict())
        second.learner.load(saved)
        second.iteration = second.actor.version = first.iteration
        second.learner.prepare(second.iteration)
        experience = first.collect()
        assert first.update(experience) == second.update(experience), "a restored state gives other figures"
        _assert_equal(second.bits(), first.bits(), "a restored state continues with other bits")

    def only_declared_parameters_change(self) -> None:
        """Check that frozen ones never change, the critic only if there is one, the policy only after the warm-up."""
        run = Run(self)
        run.go_on(self.needs.warmup)
        early = run.find_changed() - {"critic"}
        assert not early, f"parameters of {early} change in the {self.needs.warmup} iterations of needs.warmup"
        changed = self.usual[0].find_changed()
        assert "frozen" not in changed, "parameters change that are in no group of the actor"
        assert self.needs.critic or "critic" not in changed, "the critic changes, although needs.critic is false"
        assert changed - {"critic"}, "no parameter of the policy changes"

    def nothing_is_learned_from_nothing(self) -> None:
        """Check an update without a row, as after the loss of a worker; and one without success, if that is needed."""
        for succeeds in (True, False) if self.needs.success else (True,):
            run = Run(self, succeeds=succeeds)
            run.iteration = self.needs.warmup
            experience = run.collect()
            run.rollout.valid[:] = False
            if self.needs.learns_from == "replay" and succeeds:
                experience = Replay(ReplayStorage(run.storage.format))
            figures = run.update(experience)
            what = "no row to learn from" if succeeds else "no successful episode"
            assert not run.find_changed(), f"parameters change, although there is {what}"
            assert all(map(isfinite, figures.values())), f"with {what}, figures are not finite: {figures}"

    def what_is_not_needed_is_not_read(self) -> None:
        """Check that an update reads no value without `critic`, no group without `group_size`, and no lost row."""
        if self.needs.learns_from == "replay":
            return  # a replay storage holds nothing else than what is needed
        found = list[dict[str, Tensor]]()
        for spoils in (False, True):
            run = Run(self)
            run.iteration = self.needs.warmup
            rollout = run.collect()[0]
            rollout.valid[:2, 1] = False
            if spoils:
                for name in ("reward", "log_prob", "value"):
                    getattr(rollout, name)[~rollout.valid] = 9.0
                for name in () if self.needs.critic else ("value", "last_value", "final_value"):
                    getattr(rollout, name)[:] = 7.0
                if self.needs.group_size == 1:
                    rollout.group[:] = 3
            run.update([rollout])
            found.append(run.bits())
        _assert_equal(found[1], found[0], "values, groups or lost rows are read, although they may not matter")

    def sources_count_as_documented(self) -> None:
        """Check that the steps of a rollout or the executed actions of a storage count if their source is learned."""
        if self.needs.learns_from == "rollouts":
            return self._steps_of_a_rollout_count()
        plain = Run(self)
        plain.go_on(self.needs.warmup + 1)
        for source in (Source.HUMAN, Source.SAFETY):
            run = Run(self, shift={source: 0.25})
            run.go_on(self.needs.warmup + 1)
            same = all(torch.equal(value, plain.bits()[name]) for name, value in run.bits().items())
            assert same == (source not in self.learns), (
                f"executed actions of {source.name} {'do not count' if same else 'count'}, "
                f"but `learns` says {'that they do' if same else 'that they do not'}"
            )
        return None

    def _steps_of_a_rollout_count(self) -> None:
        """Check that the gradient of a rollout of mixed sources is that of the learned ones' steps alone."""
        collected = Run(self)
        rollout = collected.collect()[0]
        rollout.valid[:2, 1] = False
        rows = torch.arange(rollout.valid.numel()).view_as(rollout.valid)
        actor = StepActor(rows.numel(), rollout.log_prob.shape[2:])
        learner = self.start(actor)
        given = replace(rollout, trace={"row": rows}, log_prob=torch.zeros_like(rollout.log_prob))
        for iteration in (self.needs.warmup, self.needs.warmup + 1):  # one may wait for the other
            learner.prepare(iteration)
            learner.update(iter([given]), iteration=iteration)
        executed = torch.arange(rollout.executed) < rollout.steps[..., None]
        learned = torch.isin(rollout.source, torch.tensor([int(each) for each in self.learns], dtype=torch.uint8))
        counted = (actor.steps != 0).any(dim=-1).view_as(executed)
        assert counted.any(), "no step of a rollout counts"
        for what, may in (("not executed", executed), ("lost", rollout.valid[..., None].expand_as(executed))):
            assert not (counted & ~may).any(), f"a step counts that was {what}"
        others = sorted({Source(int(each)).name for each in rollout.source[counted & ~learned]})
        assert not others, f"steps of {', '.join(others)} count, but `learns` says that they do not"


def _assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], message: str) -> None:
    assert found.keys() == expected.keys(), f"{message}: other tensors"
    wrong = [name for name, value in found.items() if not torch.equal(value, expected[name])]
    assert not wrong, f"{message}: {', '.join(wrong[:3])}"
