"""The part of a run's report about its scorer: what it said beside the truth, and when it could not be asked."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from embodied_rl.reports.chart import Series, draw_line_chart
from embodied_rl.runs.metrics_file import Value

Row = Mapping[str, Value]
_SHARES = (("valid scores", "reward/valid"), ("held potentials", "reward/held"))
_DONE = (("false share of done", "reward/false_done"), ("judgements missing", "reward/missing_done"))


def make_reward_section(metrics: Sequence[Row], terminal: bool) -> str:
    """Return charts and notes of a run's metrics as HTML; nothing for a run without a scorer.

    Args:
        metrics: of the run, a row for each iteration.
        terminal: whether the scorer alone said when a task was done.
    """
    if not any("reward/asked" in row for row in metrics):
        return ""
    iterations = [float(row.get("iteration") or 0) for row in metrics]

    def draw(title: str, curves: Sequence[tuple[str, str]], *, percent: bool = True) -> str:
        series = [Series(label, iterations, [_number(row.get(name)) for row in metrics]) for label, name in curves]
        return draw_line_chart(title, series, x_label="iteration", percent=percent)

    beside = (("the scorer's opinion at the end", "reward/critic_return"), ("true success", "rollout/success"))
    charts = [draw("Scorer and truth", beside), draw("Scores in time", _SHARES), draw("Judgements of done", _DONE)]
    charts.append(draw("Lost under another task's words", [("", "reward/mismatch_gap")], percent=False))
    acted = describe_guard(metrics, terminal)
    charts.append(draw("Weight of the scorer", [("", "reward/weight")]) if acted else "")
    notes = [*describe_outages(metrics, terminal), *acted]
    told = "".join(f'<p class="note"><b>{escape(note)}</b></p>' for note in notes)
    return f'{told}<div class="charts">{"".join(charts)}</div>'


def describe_outages(metrics: Sequence[Row], terminal: bool) -> Iterator[str]:
    """Yield a sentence for each stretch of iterations in which the scorer was down, or nothing came in time."""
    for (state, cause), rows in groupby(metrics, _find_outage):
        if state:
            numbers = [row.get("iteration") for row in rows]
            which = f"iterations {numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"iteration {numbers[0]}"
            without = "without any reward" if terminal else "on the simulator's reward only"
            trained = f"trained {without}" if state == "none" else "trained with only a part of the scores"
            yield f"{which} {trained}: {cause or 'no score came in time'}"


def describe_guard(metrics: Sequence[Row], terminal: bool) -> list[str]:
    """Return what the guard did, in a sentence; nothing if it did nothing."""
    if (row := next((row for row in metrics if row.get("reward/guard")), None)) is None:
        return []
    did = "it warned" if terminal else "the scorer was faded out from then on"
    opinion, true = _number(row.get("reward/critic_return")), _number(row.get("rollout/success"))
    figures = "" if opinion is None or true is None else f" (then {opinion:.2f} and {true:.1%})"
    return [f"iteration {row.get('iteration')}: the scorer's opinion rose while true success fell{figures}; {did}"]


def _find_outage(row: Row) -> tuple[str, str]:
    cause = str(row.get("reward/trouble") or "")
    if "reward/asked" not in row or (row.get("reward/valid") and not row.get("reward/down")):
        return "", ""
    return ("part" if row.get("reward/valid") else "none"), cause


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) else None
