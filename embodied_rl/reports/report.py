"""The report of an evaluation: `report.json` for programs, `report.html` for people.

`report.json`:

    success: {rate, low, high, episodes}      success-once, with Wilson's 95 % interval
    success_at_end: {rate, low, high, episodes}
    steps, reward, smoothness                 means over episodes
    steps_to_success                          mean over successes; null without any
    families: {name: as above}, tasks: {name: as above}
    metadata: {checkpoint, split, episodes_for, seed, commit, packages, episodes_sha256, …}
    episodes: [{index, task, seed, split, conditions, success, failure, …}]

`split` is what was evaluated, "eval" or a held-out split; `conditions` is the simulator's name for it: those of "eval"
are the conditions of training, "train", on seeds that training never sees.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.reports.statistics import wilson_interval
from embodied_rl.system.atomic_write import write_text
from embodied_rl.system.untrusted_files import read_json, shorten

MACHINE = ("num_envs", "python", "pythonpath")
"""Settings of a simulator that depend on the machine, and do not change episodes."""
BENCHMARK = "benchmark"
"""Purpose of episodes that a benchmark prescribes."""
_VERSIONS = ("depends_on", "seeded", "assets", *MACHINE)
"""Entries that do not define episodes; `depends_on` has the hash of an assets folder's content."""


@dataclass(frozen=True)
class Rate:
    """A fraction of episodes and its 95 % interval, all in [0, 1]."""

    rate: float
    low: float
    high: float
    episodes: int

    @staticmethod
    def from_count(count: int, episodes: int) -> "Rate":
        low, high = wilson_interval(count, episodes)
        return Rate(count / max(1, episodes), low, high, episodes)


@dataclass(frozen=True)
class Summary:
    """The statistics of some episodes; `steps`, `reward` and `smoothness` are means, see `EpisodeResult`.

    `steps_to_success` is the mean over successes; None without any, and in reports of older versions.
    """

    success: Rate
    success_at_end: Rate
    steps: float
    reward: float
    smoothness: float
    steps_to_success: float | None = None

    @staticmethod
    def from_results(results: Sequence[EpisodeResult]) -> "Summary":
        to_success = [result.steps_to_success for result in results if result.steps_to_success is not None]
        return Summary(
            success=Rate.from_count(sum(result.success for result in results), len(results)),
            success_at_end=Rate.from_count(sum(result.success_at_end for result in results), len(results)),
            steps=fmean(result.steps for result in results),
            reward=fmean(result.reward for result in results),
            smoothness=fmean(result.smoothness for result in results),
            steps_to_success=fmean(to_success) if to_success else None,
        )


@dataclass(frozen=True)
class Report:
    """The report on one policy and one list of episodes.

    `families` and `tasks` have those with episodes, in the simulator's order; `metadata` any JSON values.
    """

    overall: Summary
    families: dict[str, Summary]
    tasks: dict[str, Summary]
    metadata: dict[str, Any]
    episodes: tuple[EpisodeResult, ...]

    @staticmethod
    def from_results(results: Sequence[EpisodeResult], spec: SimulatorSpec, metadata: Mapping[str, Any]) -> "Report":
        """Summarise results; the hash of the episodes is added to the metadata."""
        assert results, "an evaluation has episodes"
        simulators = metadata.get("simulators", ())
        tasks = {item.name: [r for r in results if r.task == number] for number, item in enumerate(spec.tasks)}
        families = {name: [r for r in results if spec.tasks[r.task].family == name] for name in spec.families}
        return Report(
            overall=Summary.from_results(results),
            families={name: Summary.from_results(found) for name, found in families.items() if found},
            tasks={name: Summary.from_results(found) for name, found in tasks.items() if found},
            metadata={**metadata, "episodes_sha256": hash_episodes(results, spec, simulators)},
            episodes=tuple(results),
        )

    @property
    def success(self) -> Rate:
        return self.overall.success

    def summarise(self) -> dict[str, Any]:
        """Return the content of `report.json` without the single episodes."""
        return {
            **asdict(self.overall),
            "families": {name: asdict(summary) for name, summary in self.families.items()},
            "tasks": {name: asdict(summary) for name, summary in self.tasks.items()},
            "metadata": self.metadata,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `report.json`."""
        return self.summarise() | {
            "episodes": [
                asdict(result) | {"split": self.metadata.get("split", result.split), "conditions": result.split}
                for result in self.episodes
            ],
        }

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "Report":
        """Make a report from a result of `to_dict`, which may come from an untrusted file.

        Raises:
            KeyError, TypeError, AttributeError: an entry is missing, or of another type.
            UserError: a number or a text is of another type, or a rate differs from the episodes.
        """
        episodes: list[EpisodeResult] = []
        for entry in content["episodes"]:
            values = {name: value for name, value in entry.items() if name != "conditions"}
            values["split"] = entry.get("conditions", entry["split"])  # older reports have one name for both
            episodes.append(freeze_config(EpisodeResult, values, "episodes"))
        report = Report(
            overall=_read_summary(content),
            families={str(name): _read_summary(entry) for name, entry in content["families"].items()},
            tasks={str(name): _read_summary(entry) for name, entry in content["tasks"].items()},
            metadata=dict(content["metadata"]),
            episodes=tuple(episodes),
        )
        # Tables show the rates, paired tests use the episodes.
        _check_rate("success", report.success, [result.success for result in report.episodes])
        if sum(family.success.episodes for family in report.families.values()) != len(report.episodes):
            raise UserError(
                f"its families have other episodes than the {len(report.episodes)} that it lists", code="report-damaged"
            )
        numbers = sorted({result.task for result in report.episodes})
        if len(numbers) == len(report.tasks):  # else pairing reports that their names are unknown
            for number, (name, task) in zip(numbers, report.tasks.items(), strict=True):
                _check_rate(name, task.success, [result.success for result in report.episodes if result.task == number])
        return report

    def write(self, folder: Path, key: str = "run.root") -> Path:
        """Write `report.json` and return its path; `key` is the configuration key of a `StorageError`."""
        path = folder / "report.json"
        write_text(path, json.dumps(self.to_dict(), indent=1) + "\n", key)
        return path

    @staticmethod
    def read(path: Path) -> "Report":
        """Read a `report.json`; raise `UserError` if it is none."""
        try:
            return Report.from_dict(read_json(path))
        except (UserError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path} is not a report of `embodied-rl eval` ({shorten(error)}).", code="report-damaged"
            ) from error


def hash_episodes(
    results: Sequence[EpisodeResult], spec: SimulatorSpec, simulators: Sequence[Mapping[str, Any]]
) -> str:
    """Hash the tasks, seeds, numbered initial states, splits and simulators' settings of all episodes.

    Two reports have the same hash exactly if all of these are the same. `simulators` may be empty, as in older reports.
    """
    settings = [json.dumps(each, sort_keys=True) for each in select_settings(simulators)] or [""]
    numbered = [() if result.initial_state is None else (result.initial_state,) for result in results]
    tasks = [(spec.tasks[result.task].family, spec.tasks[result.task].name) for result in results]
    where = [settings[(result.simulator or 0) if len(settings) > 1 else 0] for result in results]
    rows = zip(results, tasks, numbered, where, strict=True)
    listed = sorted((r.split, *task, simulator, r.seed, *state) for r, task, state, simulator in rows)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]


def select_settings(simulators: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return those settings of simulators that decide what an episode is, without versions of packages."""
    return [{key: value for key, value in each.items() if key not in _VERSIONS} for each in simulators]


def read_purpose(metadata: Mapping[str, Any]) -> str:
    """Return the purpose of a report's episodes: "report", "publish" or "benchmark".

    Reports of earlier versions do not store it; they had no episodes to publish.
    """
    return str(metadata.get("episodes_for", BENCHMARK if BENCHMARK in metadata else "report"))


def describe_delay(metadata: Mapping[str, Any]) -> str:
    """Return a report's inference delay and strategy as text; empty without a delay, as in older reports."""
    if not (metadata.get("delay") or metadata.get("replan")):
        return ""
    return f"delay {metadata.get('delay')}, {metadata.get('strategy')}, every {metadata.get('replan')}"


def _check_rate(where: str, rate: Rate, outcomes: Sequence[bool]) -> None:
    if rate.episodes != len(outcomes) or abs(rate.rate * len(outcomes) - sum(outcomes)) > 1e-6 * len(outcomes):
        raise UserError(
            f"{where}: the rate is {rate.rate:.6g} of {rate.episodes} episodes, but lists {len(outcomes)} with "
            f"{sum(outcomes)} successes",
            code="report-damaged",
        )


def _read_summary(content: Mapping[str, Any]) -> Summary:
    names = [item.name for item in fields(Summary)]
    summary = freeze_config(Summary, {name: content[name] for name in names if name in content})
    for name, rate in (("success", summary.success), ("success_at_end", summary.success_at_end)):
        if not all(0 <= share <= 1 for share in (rate.rate, rate.low, rate.high)):
            raise UserError(f"{name}: a rate and its interval are from 0 to 1, not {rate.rate}", code="report-damaged")
    return summary
