"""Measure a policy under inference delay: strategies × delays, with success, steps to success, and jumps.

A jump is the difference between successive actions, scaled so that each entry has the range 2; its root mean square
excludes switches (`SimulatorSpec.kept_while_holding`). At a *border* a new chunk takes over; other actions are *inside*
of a chunk.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embodied_rl.deployment.execution.messages import Why
from embodied_rl.deployment.execution.settings import Strategy
from embodied_rl.evaluate.protocol import ResultCounter, Results
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.reports.report import Summary
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.rollout.delay import choose_delay, read_chunks
from embodied_rl.rollout.episode_sampler import derive_noise_seed
from embodied_rl.rollout.runner import EpisodeRunner, RunningEpisode, choose_batch
from embodied_rl.runtime.processes.handle import Handle

NONE = "no delay"
"""Strategy of a cell without delay."""


class JumpMeter(ResultCounter):
    """An observer that computes the results of episodes and measures jumps."""

    def __init__(self, kept: Results, spec: SimulatorSpec) -> None:
        super().__init__(kept)
        self._squares: dict[str, list[float]] = {"border": [], "inside": []}
        self._moving = np.array([name not in spec.kept_while_holding for name in spec.action_names])
        self._range = np.array(spec.action_high) - np.array(spec.action_low)
        self._last: dict[int, Array] = {}

    def on_start(self, started: Sequence[RunningEpisode], observation: Observation) -> None:
        super().on_start(started, observation)
        for each in started:
            self._last.pop(each.episode.index, None)

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        super().on_step(running, before, result)
        for each in running:
            for step in range(int(result.steps[each.row])):
                scaled = 2 * (result.executed[each.row, step] / self._range)[self._moving]
                command, last = each.commands[step], self._last.get(each.episode.index)
                if last is not None and command.why == Why.PLAN:
                    place = "border" if command.joins else "inside"
                    self._squares[place].append(float(np.mean((scaled - last) ** 2)))
                self._last[each.episode.index] = scaled

    def measure(self, where: str) -> float | None:
        """Return the root mean square of jumps "border" or "inside"; None without any."""
        squares = self._squares[where]
        return float(np.sqrt(np.mean(squares))) if squares else None


@dataclass(frozen=True)
class Cell:
    """The measurement of one strategy at one delay.

    Without a summary, `why_not` has the reason. `border` and `inside` are the root mean square of the jumps, None
    without any.
    """

    strategy: str
    delay: int
    replan: int = 0
    summary: Summary | None = None
    border: float | None = None
    inside: float | None = None
    results: tuple[EpisodeResult, ...] = ()
    why_not: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the content for a report in JSON, with the success of each episode by its index."""
        content = {**asdict(self), "summary": None if self.summary is None else asdict(self.summary)}
        return content | {"results": {result.index: result.success for result in self.results}}

    def describe(self) -> str:
        """Return a line with the measurement, or with the reason for a missing one."""
        if self.why_not:
            return f"{self.strategy}, d = {self.delay}: {self.why_not}"
        return " | ".join(self.format_cells())

    def format_cells(self) -> tuple[str, ...]:
        """Return the cells of a table."""
        first = (self.strategy, str(self.delay), str(self.replan) if self.replan else "–")
        if self.summary is None:
            return *first, "–", "–", "–", "–"
        success, quick = self.summary.success, self.summary.steps_to_success
        rate = f"{100 * success.rate:.1f} [{100 * success.low:.1f}, {100 * success.high:.1f}]"
        numbers = (quick, self.border, self.inside)
        places = ("{:.1f}", "{:.3f}", "{:.3f}")
        return *first, rate, *("–" if n is None else p.format(n) for n, p in zip(numbers, places, strict=True))


CAPTION = (
    "d: control steps of an inference; s: between two, of stop actions of a chunk.\n"
    "Jumps: root mean square between successive actions, limits scaled to ±1."
)
HEADINGS = ("strategy", "d", "s", "success, % [95 %]", "steps", "border", "inside")


@dataclass(frozen=True)
class DelaySetup:
    """The settings of all combinations: `make` returns a simulator of `envs` environments, which the caller closes.

    `seed` is that of the policy's noise.
    """

    policy: Actor
    make: Callable[[], Handle]
    envs: int
    episodes: Sequence[Episode]
    seed: int


def measure_strategies(setup: DelaySetup, strategies: Sequence[Strategy], delays: Sequence[int]) -> Iterator[Cell]:
    """Measure each strategy at each delay on the same episodes; yield each as soon as it is done.

    Without a delay all strategies are the same: one is measured, with the executed actions of the policy's file. A cell
    has the reason if the policy does not support the strategy and delay.
    """
    for delay in sorted(set(delays)):
        for strategy in strategies if delay else ("naive",):
            with closing(setup.make()) as handle:
                chunks, spec = read_chunks(setup.policy), handle.spec
                try:
                    found = choose_delay(delay, strategy, None if delay else chunks.executed, None, chunks, spec)
                except UserError as error:
                    yield Cell(strategy, delay, why_not=str(error))
                    continue
                assert found is not None, "a period is given where there is no delay"
                meter, noise = JumpMeter(Results(), spec), derive_noise_seed("report", setup.seed)
                runner = EpisodeRunner(setup.policy, spec, noise, batch=choose_batch(setup.envs), delay=found)
                runner.run([handle], setup.envs, setup.episodes, meter)
            results = tuple(meter.results.found[episode.index] for episode in setup.episodes)
            jumps, summary = (meter.measure("border"), meter.measure("inside")), Summary.from_results(results)
            yield Cell(strategy if delay else NONE, delay, found.replan, summary, *jumps, results)
