"""What a run's report says of the head that scored in its judge's place, and of what the judge cost."""

from collections.abc import Mapping, Sequence

from embodied_rl.runs.metrics_file import Value

Row = Mapping[str, Value]


def describe_head(metrics: Sequence[Row]) -> list[str]:
    """Return who scored how many decisions, and how far the head agreed with the judge; nothing without a head.

    Args:
        metrics: of the run, a row for each iteration; decisions are counted since it began.
    """
    rows = [row for row in metrics if "reward/head_share" in row]
    if not rows:
        return []
    decisions = _count_decisions(metrics)
    everything = sum(decisions) or 1.0
    scored = sum(_read(row, "reward/head_share") * n for row, n in zip(metrics, decisions, strict=True)) / everything
    labels = sum(_read(row, "reward/labels") for row in rows)
    version, kept = int(_read(rows[-1], "reward/head_version")), int(_read(rows[-1], "reward/head_labels"))
    return [
        f"The head, not the judge, scored {scored:.1%} of the decisions; the others were held. The judge answered "
        f"about {labels:.0f} observations, for {sum(decisions):.0f} decisions; its scores taught the head, and are in "
        "no reward.",
        f"The head learned {version} times, at last from {kept} labels. {_describe_agreement(rows)}",
    ]


def describe_cost(metrics: Sequence[Row]) -> list[str]:
    """Return what the judge cost, in a sentence; nothing where no price was given."""
    row = next((row for row in reversed(metrics) if "reward/cost" in row), None)
    if row is None:
        return []
    read, written, uncounted = (int(_read(row, f"reward/tokens_{x}")) for x in ("read", "written", "uncounted"))
    tokens = f"{read} tokens read and {written} written"
    if isinstance(row["reward/cost"], str):
        return [f"What the judge cost is unknown: {uncounted} answers without a count of tokens, beside {tokens}."]
    return [f"The judge cost {_read(row, 'reward/cost'):.4g}: {tokens}."]


def _describe_agreement(rows: Sequence[Row]) -> str:
    row = next((row for row in reversed(rows) if "reward/head_agreement" in row), None)
    if row is None:
        return "How far it agrees with the judge is not known: too few labels of episodes that it did not learn from."
    share, low, high = (_read(row, f"reward/head_agreement{end}") for end in ("", "_low", "_high"))
    sure = f" [{100 * low:.0f}, {100 * high:.0f}]" if "reward/head_agreement_low" in row else ""
    return (
        f"In iteration {row.get('iteration')} it put {100 * share:.0f}{sure} % of pairs of observations, of episodes "
        "that it did not learn from, in the judge's order (half is chance)."
    )


def _count_decisions(metrics: Sequence[Row]) -> list[float]:
    """Return the decisions of each iteration."""
    totals = [_read(row, "total/decisions") for row in metrics]
    return [now - before for now, before in zip(totals, [0.0, *totals[:-1]], strict=True)]


def _read(row: Row, name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
