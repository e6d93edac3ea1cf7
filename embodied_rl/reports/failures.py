"""Why episodes failed: how many of each kind, as the simulator tells."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from embodied_rl.reports.page import format_percent, make_bar, make_html_table
from embodied_rl.reports.report import Rate
from embodied_rl.reports.result import EpisodeResult

NOT_TOLD = "not told"
"""The kind of a failure that the simulator ended without a word."""


def count_failures(results: Sequence[EpisodeResult]) -> dict[str, int]:
    """Return kind of failure → number of episodes, the most frequent first."""
    counts = Counter(result.failure or NOT_TOLD for result in results if not result.success)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def make_failure_table(results: Sequence[EpisodeResult], before: Sequence[EpisodeResult] | None) -> str:
    """Make an HTML table of failures by kind, with those before training beside them; a sentence if none is told."""
    found = count_failures(results)
    earlier = {} if before is None else count_failures(before)
    if not {*found, *earlier} - {NOT_TOLD}:
        return _describe_untold(sum(found.values()), len(results))
    kinds = [*found, *(kind for kind in earlier if kind not in found)]
    headings = ["why", "", *([] if before is None else ["before"]), "episodes", "share [95 %]"]
    rows = [_make_cells(kind, found, earlier, results, before) for kind in kinds]
    return make_html_table(headings, rows)


def _make_cells(
    kind: str,
    found: Mapping[str, int],
    earlier: Mapping[str, int],
    results: Sequence[EpisodeResult],
    before: Sequence[EpisodeResult] | None,
) -> list[str]:
    share = Rate.from_count(found.get(kind, 0), len(results))
    old = [] if before is None else [f"{earlier.get(kind, 0)} of {len(before)}"]
    return [escape(kind), make_bar(share), *old, f"{found.get(kind, 0)} of {len(results)}", format_percent(share)]


def _describe_untold(failed: int, episodes: int) -> str:
    if not failed:
        return "<p>No episode failed.</p>"
    return f"<p>{failed} of {episodes} episodes failed. Why is not told: the simulator does not say.</p>"
