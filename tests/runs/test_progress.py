"""Progress is shown as lines in files and pipes, and as a table on terminals."""

import io
from contextlib import contextmanager

import pytest
from rich.console import Console

from embodied_rl.runs.progress import Progress, describe_scorer, format_duration

METRICS = {"rollout/success": 0.425, "update/kl": 0.0123, "time/steps_per_second": 1270.4, "update/entropy": None}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@contextmanager
def displayed(terminal, start=0, live=True, width=140):
    stream, clock = io.StringIO(), Clock()
    console = Console(file=stream, force_terminal=terminal, width=width, highlight=False)
    with Progress(10, start=start, console=console, clock=clock, live=live) as progress:
        yield progress, stream, clock


def shown(terminal, live=True, width=140):
    with displayed(terminal, 4, live, width) as (progress, stream, clock):
        clock.now = 20.0
        progress.update(5, METRICS)
        progress.note("[saved] checkpoint 5")
        clock.now = 30.0
        progress.update(6, METRICS)
    return stream.getvalue()


@pytest.mark.parametrize(("terminal", "live", "width"), [(False, True, 20), (True, False, 140)])
def test_one_plain_line_per_iteration_without_a_terminal_or_on_request(terminal, live, width):
    lines = shown(terminal, live, width).splitlines()
    figures = "success exploring 42.5%  deployed –  return –  KL 0.0123  clip share –  env-steps/s 1,270"
    assert lines == [
        f"iteration 5/10  {figures}  ETA 1m40s",
        "[saved] checkpoint 5",
        f"iteration 6/10  {figures}  ETA 1m00s",
    ]


def test_a_table_on_a_terminal():
    text = shown(terminal=True)
    assert (
        "┃" in text and "clip share" in text and "42.5%" in text and "6/10" in text and "[saved] checkpoint 5" in text
    )


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("entropy, appears", [(None, False), (0.0, False), (0.5, True)])
def test_entropy_is_shown_only_if_it_is_not_zero(terminal, entropy, appears):
    with displayed(terminal) as (progress, stream, _):
        progress.update(1, METRICS | {"update/entropy": entropy})
    assert ("entropy" in stream.getvalue()) == appears


def test_format_of_durations():
    texts = {0.4: "0s", 59: "59s", 60: "1m00s", 187: "3m07s", 3720: "1h02m", float("inf"): "–"}
    assert {seconds: format_duration(seconds) for seconds in texts} == texts


def test_a_terminal_shows_the_phase_before_the_first_iteration():
    with displayed(terminal=True) as (progress, stream, clock):
        progress.begin_phase("evaluating before training", announce=True)
        assert "evaluating before training 0s" in stream.getvalue()
        clock.now = 7.0
        progress.begin_phase("collecting")
        text = stream.getvalue()
    assert "collecting 0s" in text and "0/10 7s" in text


def test_announced_phases_are_plain_lines_without_a_terminal():
    with displayed(terminal=False) as (progress, stream, _):
        progress.begin_phase("filming", announce=True)
        progress.begin_phase("collecting")
    assert stream.getvalue() == "filming …\n"


def test_remaining_time_includes_iterations_and_closing_work():
    with displayed(terminal=False) as (progress, _, clock):
        clock.now = 100.0  # evaluating before training
        progress.begin_iterations(closing=30.0)
        assert progress.remaining(0) == float("inf")
        clock.now = 120.0
        assert progress.remaining(2) == 8 * 10.0 + 30.0
        assert progress.remaining(10) == 30.0, "closing work remains"


ASKED = {"reward/asked": 50.0, "reward/valid": 1.0, "reward/down": 0.0, "reward/degraded": 0.0}


@pytest.mark.parametrize(
    "figures, says",
    [
        ({}, ""),
        (ASKED, "healthy"),
        (ASKED | {"reward/cost": 1.23456}, "healthy, cost 1.235"),
        (ASKED | {"reward/cost": "unknown"}, "healthy, cost unknown"),
        (ASKED | {"reward/valid": 0.5}, "degraded (50% valid)"),
        (ASKED | {"reward/degraded": 0.5}, "degraded (100% valid)"),
        (ASKED | {"reward/down": 0.5, "reward/trouble": "no answer"}, "down (no answer)"),
    ],
)
def test_the_state_of_the_scorer_is_shown(figures, says):
    assert describe_scorer(figures) == says
    for terminal in (False, True):
        with displayed(terminal, width=200) as (progress, stream, _):
            progress.update(1, METRICS | figures)
        assert (f"scorer {says}" if says else "success") in stream.getvalue()
        assert says or "scorer" not in stream.getvalue()
