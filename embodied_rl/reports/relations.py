"""Relations between ways to train, registered before the runs that decide them.

`results/relations.yaml` lists them: name → `Relation`. Each compares two groups of tracked runs, one run for each seed,
by their success after training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from pathlib import Path
from typing import Any, Literal

from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.names import check_folder_name
from embodied_rl.reports.statistics import find_difference
from embodied_rl.reports.tracked_run import TrackedRun
from embodied_rl.schema.config_file import read_config

LIST = "relations.yaml"
PLACE = "relations"
"""Name of the table in the page."""
LEAST = 3
"""Seeds of each side without which a relation stays open."""


@dataclass(frozen=True)
class Relation:
    """A relation between two ways to train.

    Attributes:
        claim: what the relation says.
        source: where the claim comes from.
        first, second: folders of the tracked runs below `results/`.
        expected: "greater": the first side ends above the second by more than the margin. "equal": they differ by less.
        margin: points of success.
        registered: ISO 8601 date and time, with its zone, at which the relation was written down.
    """

    claim: str
    source: str
    first: str
    second: str
    expected: Literal["greater", "equal"]
    margin: float
    registered: str


@dataclass(frozen=True)
class _Relations:
    """The content of `results/relations.yaml`.

    Attributes:
        page: Markdown file of the table, relative to the folder that holds `results/`.
    """

    page: str
    relations: Mapping[str, Relation] = field(default_factory=dict)


def read_relations(results: Path) -> tuple[str, Mapping[str, Relation]]:
    """Read the page of the table and the relations; raise `UserError` if the list is damaged."""
    content = freeze_config(_Relations, read_config(results / LIST))
    for relation in content.relations.values():
        for group in (relation.first, relation.second):
            check_folder_name(group, LIST)
        if relation.first == relation.second or not 0 <= relation.margin < inf:
            message = f"{LIST}: {relation.first} needs another second side, and a margin of at least 0 points."
            raise UserError(message, code="relation-damaged")
        if _read_time(relation.registered) is None:
            message = (
                f"{LIST}: registered: {relation.registered!r} should be a date and time of ISO 8601 with its zone."
            )
            raise UserError(message, code="relation-damaged")
    return content.page, content.relations


def decide(relation: Relation, low: float, high: float) -> Literal["reproduced", "refuted", "undecided"]:
    """Decide a relation by the interval of the difference, first side less second, in points."""
    margin = relation.margin
    if relation.expected == "greater":
        return "reproduced" if low > margin else "refuted" if high < margin else "undecided"
    if -margin < low and high < margin:
        return "reproduced"
    return "refuted" if low > margin or high < -margin else "undecided"


def find_later_sides(
    name: str, relation: Relation, first: Sequence[TrackedRun], second: Sequence[TrackedRun]
) -> Literal["both", "first", "second"]:
    """Return which sides' runs are all known to have begun after the relation was registered.

    Raises:
        UserError: neither side's are.
    """
    registered = _read_time(relation.registered)
    begun = [[_read_time(run.provenance.get("started")) for run in runs] for runs in (first, second)]
    later = [registered is not None and all(each is not None and each >= registered for each in side) for side in begun]
    if not any(later):
        message = (
            f"{LIST}: {name} was registered at {relation.registered}, and not all runs of {relation.first}, nor of "
            f"{relation.second}, are known to have begun later. Run one of the two again."
        )
        raise UserError(message, code="relation-registered-late")
    return "both" if all(later) else "first" if later[0] else "second"


def make_relations_table(groups: Mapping[str, Sequence[TrackedRun]], relations: Mapping[str, Relation]) -> str:
    """Make a Markdown table of the relations, with the verdict of each; one with too few seeds is open.

    Args:
        groups: folder below `results/` → its tracked runs; empty if nothing was run yet.
        relations: name → relation.
    """
    heads = ("claim", "source", "first side", "second side", "run after", "claimed difference", "difference", "verdict")
    rows = [heads, ("---",) * len(heads)]
    for name, relation in relations.items():
        sides = [groups[relation.first], groups[relation.second]]
        success = [[100 * run.after.rate().rate for run in runs] for runs in sides]
        claimed = f"> {relation.margin:g}" if relation.expected == "greater" else f"within ± {relation.margin:g}"
        cells = [
            f"`{group}`: {_format(each)}"
            for group, each in zip((relation.first, relation.second), success, strict=True)
        ]
        later, found, verdict = "", "", "open"
        if min(map(len, success)) >= LEAST:
            later = find_later_sides(name, relation, *sides)
            if len({run.after.episodes_sha256 for side in sides for run in side}) > 1:
                message = f"{LIST}: {name}: runs of {relation.first} and {relation.second} report on other episodes."
                raise UserError(message, code="tracked-runs-unequal")
            difference, low, high = find_difference(*success)
            found, verdict = f"{difference:+.1f} [{low:+.1f}, {high:+.1f}]", decide(relation, low, high)
        rows.append((relation.claim, relation.source, *cells, later, claimed, found, verdict))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _format(success: Sequence[float]) -> str:
    return ", ".join(f"{each:.1f}" for each in success) or "not run"


def _read_time(text: Any) -> datetime | None:
    """Return a time of ISO 8601 with its zone; None if the text is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return None if found.tzinfo is None else found
