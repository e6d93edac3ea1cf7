"""The scorer's part of a run's report: its scores and the truth, outages, the distilled head, and the cost."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from embodied_rl.reports.chart import Series, draw_line_chart, join_charts
from embodied_rl.runs.metrics_file import Value, read_number

Row = Mapping[str, Value]
_SHARES = (("valid scores", "reward/valid"), ("held potentials", "reward/held"))
_DONE = (("false share of done", "reward/false_done"), ("judgements missing", "reward/missing_done"))
_TRAINED = {
    "part": "trained with only a part of the scores",
    "head": "trained with a head that got only a part of the labels",
}


def make_reward_section(metrics: Sequence[Row], terminal: bool) -> str:
    """Return charts and notes of a run's metrics as HTML; nothing for a run without a scorer."""
    if not any("reward/asked" in row for row in metrics):
        return ""
    iterations = [float(row.get("iteration") or 0) for row in metrics]

    def draw(title: str, curves: Sequence[tuple[str, str]], *, percent: bool = True) -> str:
        series = [Series(label, iterations, [read_number(row.get(name)) for row in metrics]) for label, name in curves]
        return draw_line_chart(title, series, x_label="iteration", percent=percent)

    curves = (("the scorer's opinion at the end", "reward/critic_return"), ("true success", "rollout/success"))
    charts = [draw("Scorer and truth", curves), draw("Scores in time", _SHARES), draw("Judgements of done", _DONE)]
    charts.append(draw("Lost under another task's words", [("", "reward/mismatch_gap")], percent=False))
    acted = describe_guard(metrics, terminal)
    charts.append(draw("Weight of the scorer", [("", "reward/weight")]) if acted else "")
    if any("reward/head_share" in row for row in metrics):
        curves = (("agreement", "reward/head_agreement"), ("low", "reward/head_agreement_low"))
        charts.append(draw("Head and judge", (*curves, ("high", "reward/head_agreement_high"))))
        charts.append(draw("Decisions that the head scored", [("", "reward/head_share")]))
    notes = [*describe_outages(metrics, terminal), *acted]
    text = "".join(f'<p class="note"><b>{escape(note)}</b></p>' for note in notes)
    text += "".join(f"<p>{escape(note)}</p>" for note in (*describe_head(metrics), *describe_cost(metrics)))
    return text + join_charts(charts)


def describe_outages(metrics: Sequence[Row], terminal: bool) -> Iterator[str]:
    """Yield a sentence for each stretch of iterations in which the scorer was down, or nothing came in time."""

    def find_outage(row: Row) -> tuple[str, str]:
        cause = str(row.get("reward/trouble") or "")
        if "reward/head_share" in row:  # the judge's answers change what the head learns, not which of them scores
            if not row["reward/head_share"]:
                return "none", cause or "the head had learned nothing yet"
            return ("head", cause) if row.get("reward/down") else ("", "")
        if "reward/asked" not in row or (row.get("reward/valid") and not row.get("reward/down")):
            return "", ""
        return ("part" if row.get("reward/valid") else "none"), cause

    for (state, cause), rows in groupby(metrics, find_outage):
        if state:
            numbers = [row.get("iteration") for row in rows]
            which = f"iterations {numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else f"iteration {numbers[0]}"
            without = "without any reward" if terminal else "on the simulator's reward only"
            trained = f"trained {without}" if state == "none" else _TRAINED[state]
            yield f"{which} {trained}: {cause or 'no score came in time'}"


def describe_guard(metrics: Sequence[Row], terminal: bool) -> list[str]:
    """Return the guard's action in a sentence; nothing without one."""
    if (row := next((row for row in metrics if row.get("reward/guard")), None)) is None:
        return []
    did = "it warned" if terminal else "the scorer was faded out from then on"
    opinion, true = read_number(row.get("reward/critic_return")), read_number(row.get("rollout/success"))
    figures = "" if opinion is None or true is None else f" (then {opinion:.2f} and {true:.1%})"
    return [f"iteration {row.get('iteration')}: the scorer's opinion rose while true success fell{figures}; {did}"]


def describe_head(metrics: Sequence[Row]) -> list[str]:
    """Return how many decisions the head scored, and how well it agreed with the judge; nothing without a head.

    Args:
        metrics: of the run, a row for each iteration; decisions are counted since it began.
    """
    rows = [row for row in metrics if "reward/head_share" in row]
    if not rows:
        return []
    totals = [_read(row, "total/decisions") for row in metrics]
    decisions = [now - before for now, before in zip(totals, [0.0, *totals[:-1]], strict=True)]
    everything = sum(decisions) or 1.0
    scored = sum(_read(row, "reward/head_share") * n for row, n in zip(metrics, decisions, strict=True)) / everything
    labels = sum(_read(row, "reward/labels") for row in rows)
    version, kept = int(_read(rows[-1], "reward/head_version")), int(_read(rows[-1], "reward/head_labels"))
    agreement = "How far it agrees with the judge is not known: too few labels of episodes that it did not learn from."
    if row := next((row for row in reversed(rows) if "reward/head_agreement" in row), None):
        share, low, high = (_read(row, f"reward/head_agreement{end}") for end in ("", "_low", "_high"))
        sure = f" [{100 * low:.0f}, {100 * high:.0f}]" if "reward/head_agreement_low" in row else ""
        agreement = (
            f"In iteration {row.get('iteration')} it put {100 * share:.0f}{sure} % of pairs of observations, of "
            "episodes that it did not learn from, in the judge's order (half is chance)."
        )
    return [
        f"The head, not the judge, scored {scored:.1%} of the decisions; the others were held. The judge answered "
        f"about {labels:.0f} observations, for {sum(decisions):.0f} decisions; its scores taught the head, and are in "
        "no reward.",
        f"The head learned {version} times, at last from {kept} labels. {agreement}",
    ]


def describe_cost(metrics: Sequence[Row]) -> list[str]:
    """Return the cost of the judge in a sentence; nothing without a price."""
    row = next((row for row in reversed(metrics) if "reward/cost" in row), None)
    if row is None:
        return []
    read, written, uncounted = (int(_read(row, f"reward/tokens_{x}")) for x in ("read", "written", "uncounted"))
    tokens = f"{read} tokens read and {written} written"
    if isinstance(row["reward/cost"], str):
        return [f"What the judge cost is unknown: {uncounted} answers without a count of tokens, besides {tokens}."]
    return [f"The judge cost {_read(row, 'reward/cost'):.4g}: {tokens}."]


def _read(row: Row, name: str) -> float:
    return read_number(row.get(name)) or 0.0
