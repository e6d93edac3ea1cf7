"""Timelines: metrics against known results."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from embodied_rl.rollout import timeline
from embodied_rl.rollout.timeline import (
    INFER,
    LEARN,
    RANK,
    SIMULATE,
    VALUE,
    WAIT,
    Span,
    Timeline,
    keep_timelines,
    read_timelines,
    summarise_utilisation,
)
from embodied_rl.system.atomic_write import StorageError
from tests.support.collecting import T, make, workers
from tests.support.refusals import refuses


def lockstep(rounds: int = 4, simulate: float = 3.0, workers: int = 2) -> Timeline:
    """The rank infers, its workers simulate, it waits for them; in the end it learns."""
    infer, learn = 1.0, 4.0
    now, spans = 100.0, list[Span]()
    for _ in range(rounds):
        spans.append(Span(RANK, INFER, now, infer, 8))
        now += infer
        spans += [Span(f"simulator {k}", SIMULATE, now, simulate, 4) for k in range(workers)]
        spans.append(Span(RANK, WAIT, now, simulate, 4))
        now += simulate
    spans.append(Span(RANK, VALUE, now, infer, 8))
    total = now + infer - 100
    return Timeline([*spans, Span(RANK, LEARN, 100 + total, learn, 64)], 100.0, total)


def test_spans_and_the_whole_are_measured_on_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of work that fails."""
    ticks = iter([103.0, 107.5, 110.0, 111.0, 120.0])
    monkeypatch.setattr(timeline, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    line = Timeline(began=100.0)
    with line.record(INFER, 8):
        pass
    with pytest.raises(ZeroDivisionError), line.record(WAIT):
        _ = 1 / 0
    line.finish()
    assert line.spans == [Span(RANK, INFER, 103.0, 4.5, 8), Span(RANK, WAIT, 110.0, 1.0, 0)]
    assert (line.began, line.total) == (100.0, 20.0)


def test_shares_and_bubble_of_lockstep() -> None:
    """17 s of rollout, 4 of learning; the rank is at work for 5 of 17, its two cores for (5 + 24) of 34."""
    found = summarise_utilisation([lockstep()], [lockstep()], cores=2, inline=False)
    assert found["busy/simulators"] == pytest.approx(12 / 21)
    assert found["busy/policy"] == pytest.approx(5 / 21)
    assert found["busy/learner"] == pytest.approx(4 / 21)
    assert found["bubble"] == pytest.approx(1 - 29 / 34)
    assert (found["wait_p50"], found["wait_p95"]) == (3, 3)
    assert (found["batch_mean"], found["batch_least"]) == (8, 8)


def test_ranks_share_cores_and_are_averaged() -> None:
    """A second rank that waits twice as long: with one core each, the simulators outweigh it."""
    lines = [lockstep(workers=1), lockstep(workers=1, simulate=7.0)]
    found = summarise_utilisation(lines, lines, cores=2, inline=False)
    bubbles = [1 - (5 + 12) / 17, 1 - (5 + 28) / 33]
    assert found["bubble"] == pytest.approx(sum(max(0, bubble) for bubble in bubbles) / 2)
    assert found["busy/simulators"] == pytest.approx((12 + 28) / 2 / ((21 + 37) / 2))
    assert found["wait_p95"] > found["wait_p50"]


def test_a_rank_that_simulates_itself_has_no_bubble() -> None:
    spans = [Span("simulator 0", SIMULATE, 0.0, 3.0, 4), Span(RANK, INFER, 3.0, 1.0, 4)]
    line = Timeline(spans, 0.0, 4.0)
    found = summarise_utilisation([line], [line], cores=1, inline=True)
    assert found["bubble"] == 0 and found["busy/simulators"] == 0.75


@pytest.mark.thorough
@pytest.mark.process
def test_a_collection_records_its_timeline(closing: Callable) -> None:
    """Every decision and every chunk has its span; those of a worker lie within the rollout, on the same clock."""
    collector, actor = make(closing(workers(2)), slices=1)
    for _ in range(2):
        collector.collect(actor)
        line = collector.timeline
        chunks = [span for span in line.spans if span.what == SIMULATE]
        assert {span.who for span in chunks} == {"simulator 0", "simulator 1"}
        assert len([span for span in line.spans if span.what == INFER]) == T
        assert all(span.size == 8 for span in line.spans if span.what == INFER)
    assert len(chunks) == 2 * T  # the first rollout had two resets more
    for span in chunks:
        assert line.began <= span.began and span.began + span.seconds <= line.began + line.total


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"\xff", "file-damaged"), (b"", "file-damaged"), (b"[{}]", "timeline-damaged"), (b"3", "timeline-damaged")],
)
def test_a_damaged_timeline_is_refused(tmp_path, content: bytes, code: str) -> None:
    keep_timelines(tmp_path, 3, [Timeline()])
    file = tmp_path / "timelines" / "00000003.json"
    file.write_bytes(content)
    with refuses(code, file):
        read_timelines(tmp_path, None)


def test_a_folder_of_timelines_that_cannot_be_made_is_reported(tmp_path) -> None:
    (tmp_path / "timelines").write_text("no folder")
    with pytest.raises(StorageError, match=r"timelines"):
        keep_timelines(tmp_path, 3, [Timeline()])
