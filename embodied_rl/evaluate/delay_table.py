"""Measure a policy under inference delay: strategies × delays, with success, steps to success, and jumps.

A jump is the difference between an action and the one before it, where each entry has the range 2; its root mean square
is over entries that are no switches (`SimulatorSpec.kept_while_holding`). At a *border* a new chunk takes over; the
other actions are *inside* of one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
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
"""Where others name a strategy."""


@dataclass
class Jumps:
    """Squared differences of successive actions, and their counts."""

    squares: dict[str, list[float]] = field(default_factory=lambda: {"border": [], "inside": []})

    def measure(self, where: str) -> float | None:
        """Return the root mean square "border" or "inside"; None without any."""
        found = self.squares[where]
        return float(np.sqrt(np.mean(found))) if found else None


class JumpMeter(ResultCounter):
    """An observer that makes the results of episodes, and measures jumps."""

    def __init__(self, kept: Results, spec: SimulatorSpec) -> None:
        super().__init__(kept)
        self.jumps = Jumps()
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
                self._add(each, step, result.executed[each.row, step])

    def _add(self, each: RunningEpisode, step: int, action: Array) -> None:
        scaled, index = 2 * (action / self._range)[self._moving], each.episode.index
        command, last = each.commands[step], self._last.get(index)
        if last is not None and command.why == Why.PLAN:
            self.jumps.squares["border" if command.joins else "inside"].append(float(np.mean((scaled - last) ** 2)))
        self._last[index] = scaled


@dataclass(frozen=True)
class Cell:
    """The measurement of one strategy at one delay.

    Attributes:
        strategy, delay, replan: what was measured.
        summary: of the episodes; None where it could not be measured.
        border, inside: root mean square of the jumps; None without any.
        results: of the episodes, for comparisons in pairs.
        why_not: why it could not be measured, else "".
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
        """Return a line on what was measured, or on why it was not."""
        missing = f"{self.strategy}, d = {self.delay}: {self.why_not}"
        return missing if self.why_not else " | ".join(self.format_cells())

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
class TestBed:
    """What all combinations share.

    Attributes:
        policy: the policy.
        make: returns a simulator of `envs` environments, which the caller closes.
        envs: environments.
        episodes: run once in each combination.
        seed: of the policy's noise.
    """

    __test__ = False  # no test of pytest's

    policy: Actor
    make: Callable[[], Handle]
    envs: int
    episodes: Sequence[Episode]
    seed: int


def measure_strategies(bed: TestBed, strategies: Sequence[Strategy], delays: Sequence[int]) -> Iterator[Cell]:
    """Measure each strategy at each delay on the same episodes; yield each as soon as it is known.

    Without a delay all strategies are the same, and one of them is measured, with as many actions of a chunk as the
    policy's file says.
    """
    for delay in sorted(set(delays)):
        for strategy in strategies if delay else ("naive",):
            yield measure_cell(bed, strategy, delay)


def measure_cell(bed: TestBed, strategy: Strategy, delay: int) -> Cell:
    """Run all episodes with one strategy and delay; the cell of what the policy cannot run says why."""
    with closing(bed.make()) as handle:
        chunks, spec = read_chunks(bed.policy), handle.spec
        try:
            found = choose_delay(delay, strategy, None if delay else chunks.executed, None, chunks, spec)
        except UserError as error:
            return Cell(strategy, delay, why_not=str(error))
        assert found is not None, "a period is given where there is no delay"
        meter, noise = JumpMeter(Results(), spec), derive_noise_seed("report", bed.seed)
        runner = EpisodeRunner(bed.policy, spec, noise, batch=choose_batch(bed.envs), delay=found)
        runner.run([handle], bed.envs, bed.episodes, meter)
    results = tuple(meter.results.found[episode.index] for episode in bed.episodes)
    border, inside = meter.jumps.measure("border"), meter.jumps.measure("inside")
    name, summary = strategy if delay else NONE, Summary.from_results(results)
    return Cell(name, delay, found.replan, summary, border, inside, results)
