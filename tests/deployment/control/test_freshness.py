"""The observation gate: which readings are refused, which streams are stale, and when they are believed again."""

from collections.abc import Iterable

import numpy as np
import pytest

from embodied_rl.deployment.control.freshness import DRIFT, Fault, FreshnessGate, StreamGate
from embodied_rl.deployment.control.settings import StreamRule
from embodied_rl.deployment.execution.tick import StreamReading
from tests.support.refusals import refuses

PERIOD = 0.05
AGE = 0.2
SETTLE = 0.3


class Camera:
    """A stream of 20 Hz behind a gate; its publisher's clock is 1000 s ahead, and a message takes 10 ms."""

    def __init__(self, known: bool = False, **rule) -> None:
        self.now, self.ahead = 5.0, 1000.0
        clock = (lambda: int((self.now + self.ahead) * 1e9)) if known else None
        self.gate = StreamGate(StreamRule("front", AGE, **rule), clock, SETTLE)
        self.count = 0

    def send(self, count: int = 1, *, stamp: float | None = None, content: int | None = None, **changes) -> list:
        """Send messages of a period each; `stamp` in seconds, else right; return what became of each."""
        taken = []
        for _ in range(count):
            self.now += PERIOD
            self.count += 1
            source = self.now + self.ahead - 0.01 if stamp is None else stamp
            digest = (self.count if content is None else content).to_bytes(4, "big")
            taken.append(self.gate.take(StreamReading(round(source * 1e9), self.now, digest, **changes), self.now))
        return taken

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def explain(self) -> str:
        return self.gate.explain(self.now)


@pytest.mark.parametrize("known", [False, True])
def test_a_healthy_stream_is_fresh(known: bool) -> None:
    camera = Camera(known)
    assert "no message has come" in camera.explain() and np.isnan(camera.gate.said_s)
    assert camera.send(100) == [True] * 100 and camera.explain() == ""
    assert camera.gate.counts == {"accepted": 100}
    assert camera.gate.said_s == pytest.approx(camera.now, abs=1e-6), "the fastest message counts as not delayed"
    camera.send(1, stamp=camera.now + PERIOD + camera.ahead - 0.04)
    assert camera.gate.said_s == pytest.approx(camera.now - 0.03, abs=DRIFT * PERIOD + 1e-6)
    camera.wait(AGE + 0.01)
    assert "no message for 0.21 s, at most 0.2" in camera.explain()


def test_what_is_repeated_by_the_caller_is_no_message() -> None:
    camera = Camera()
    stream = StreamReading(10**9, camera.now, b"one")
    assert camera.gate.take(stream, camera.now) is True
    camera.wait(0.05)
    assert camera.gate.take(stream, camera.now) is None and camera.gate.counts == {"accepted": 1}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (Fault.NOT_FINITE, {"finite": False}),
        (Fault.STANDS_STILL, {"stamp": "last"}),
        (Fault.DUPLICATE, {"stamp": "last", "content": 10}),
        (Fault.BACK, {"stamp": 900.0}),
        (Fault.FUTURE, {"stamp": 2000.0}),
    ],
)
def test_an_invalid_reading_is_refused_and_then_the_stream_is_stale(known: bool, fault: Fault, changes: dict) -> None:
    camera = Camera(known)
    camera.send(10)
    if changes.get("stamp") == "last":
        changes = changes | {"stamp": camera.now + camera.ahead - 0.01}
    assert camera.send(1, **changes) == [False] and camera.explain() == ""  # one is no reason to stop
    assert camera.send(5, **changes) == [False] * 5
    assert camera.explain() == f"front: {fault}" and camera.gate.counts[fault.name.lower()] == 6
    assert camera.send(1) == [True] and camera.explain() == ""


def test_readings_in_the_wrong_order_are_refused_one_by_one() -> None:
    camera = Camera()
    rng = np.random.default_rng(0)
    stamps = np.arange(200.0)
    swapped = stamps.copy()
    for place in rng.choice(99, 30, replace=False) * 2:
        swapped[[place, place + 1]] = swapped[[place + 1, place]]
    taken = [camera.send(1, stamp=1000 + PERIOD * float(each))[0] for each in swapped]
    assert taken.count(False) == camera.gate.counts["back"] == 30 and camera.explain() == ""


def test_a_frozen_image_is_stale_with_any_stamps() -> None:
    camera = Camera()
    camera.send(10)
    assert all(camera.send(4, content=10)) and camera.explain() == ""
    camera.send(1, content=10)
    assert "front: the same content for 0.25 s" in camera.explain()
    resting = Camera(may_repeat=True)
    resting.send(100, content=1)
    assert resting.explain() == ""
    resting.wait(AGE + 0.01)
    assert "no message" in resting.explain()


@pytest.mark.parametrize("known", [False, True])
def test_stamps_that_hardly_advance_are_old(known: bool) -> None:
    camera = Camera(known)
    camera.send(10)
    start = camera.now + camera.ahead
    for count in range(6):
        camera.send(1, stamp=start + 1e-6 * count)
    assert "its stamp is" in camera.explain() and camera.gate.counts["accepted"] == 16


@pytest.mark.parametrize("known", [False, True])
def test_stamps_that_run_ahead_are_refused_in_the_end(known: bool) -> None:
    camera = Camera(known)
    start, count = camera.now + camera.ahead, 0
    while camera.explain() == "" or count < 2:
        count += 1
        camera.send(1, stamp=start + 1.5 * PERIOD * count)
        assert count < 100
    assert camera.explain() == f"front: {Fault.FUTURE}"


@pytest.mark.parametrize("drift", [-9e-4, 1e-4, 9e-4])
def test_quartz_drifts_and_late_messages_are_no_lies(drift: float) -> None:
    camera = Camera()
    rng = np.random.default_rng(1)
    for late in rng.exponential(0.01, 5000):
        camera.ahead += drift * PERIOD
        assert camera.send(1, stamp=camera.now + PERIOD + camera.ahead - min(float(late), 0.04)) == [True]
    assert camera.explain() == ""


@pytest.mark.parametrize("jump", [-600.0, -0.5, 600.0])
def test_a_clock_that_was_set_is_believed_after_the_settling_time(jump: float) -> None:
    camera = Camera()
    camera.send(20)
    camera.ahead += jump
    seen = []
    for _ in range(20):
        camera.send(1)
        seen.append(camera.explain())
    assert seen.index(f"front: {Fault.BACK if jump < 0 else Fault.FUTURE}") in (3, 4)
    assert seen[-1] == "" and camera.gate.counts["clock was set"] == 1
    assert 40 - camera.gate.counts["accepted"] - round(SETTLE / PERIOD) in (0, 1)


def test_a_clock_that_was_set_is_believed_after_three_readings_at_the_earliest() -> None:
    camera = Camera()
    camera.gate = StreamGate(StreamRule("front", AGE), None, settle_s=PERIOD / 2)
    camera.send(20)
    camera.ahead += 600
    assert camera.send(3) == [False, False, True]
    camera.wait(AGE + 0.01)
    assert "no message for 0.21 s" in camera.explain()


@pytest.mark.parametrize("rate", [3.0, 1 / 3])
def test_a_clock_that_was_set_and_runs_at_another_rate_is_not_believed(rate: float) -> None:
    camera = Camera()
    camera.send(20)
    camera.ahead += 600
    for _ in range(40):
        camera.ahead += (rate - 1) * PERIOD
        assert camera.send(1) == [False]
    assert camera.explain() == f"front: {Fault.FUTURE}"


def test_a_reading_arrives_between_the_one_before_and_now() -> None:
    gate = StreamGate(StreamRule("front", AGE), None, SETTLE)
    arrived = [
        gate.take(StreamReading(10**9 + n, at, bytes([n])), 10.1) for n, at in enumerate((10.0, 10.2, 9.9, 10.0, 10.1))
    ]
    assert arrived == [True, False, False, True, True] and gate.counts["arrival"] == 2


@pytest.mark.parametrize("said", [False, True])
def test_a_simulation_that_was_paused_is_fresh_again_when_it_goes_on(said: bool) -> None:
    camera = Camera()
    camera.send(20)
    stamp = camera.now + camera.ahead - 0.01
    for _ in range(60):  # it may go on saying the same, or nothing
        camera.ahead -= PERIOD
        _ = camera.send(1, stamp=stamp, content=1) if said else camera.wait(PERIOD)
    assert camera.explain().startswith("front: ")
    assert camera.send(3) == [True] * 3 and camera.explain() == ""
    for _ in range(10):  # from then on it is late if it falls behind
        camera.ahead -= PERIOD / 2
        camera.send(1)
    assert "its stamp is 0.2" in camera.explain()


def test_a_publisher_that_contradicts_the_known_clock_is_never_believed() -> None:
    camera = Camera(known=True)
    camera.send(20)
    for _ in range(100):
        camera.send(1, stamp=camera.now + camera.ahead + 600)
    assert camera.explain() == f"front: {Fault.FUTURE}" and "clock was set" not in camera.gate.counts


@pytest.mark.parametrize(
    ("known", "early", "taken"), [(True, 0.04, True), (True, 0.06, False), (False, 0.19, True), (False, 0.21, False)]
)
def test_a_stamp_may_be_ahead_of_the_known_clock_by_50_ms_and_of_an_estimated_one_by_its_age(
    known: bool, early: float, taken: bool
) -> None:
    camera = Camera(known)
    camera.now = 1e5
    camera.send(20)
    stamp = camera.now + PERIOD + camera.ahead + early - (0 if known else 0.01)
    assert camera.send(1, stamp=stamp) == [taken]
    assert camera.gate.counts["future"] == (not taken)


def send_both(gate: FreshnessGate, names: Iterable[str], now: float, finite: bool = True) -> bool:
    return gate.observe({name: StreamReading(int(now * 1e9), now, str(now).encode()) for name in names}, now, finite)


def test_measured_entries_are_used_when_all_that_measures_was_accepted() -> None:
    rules = (StreamRule("joints", AGE, measures=True), StreamRule("tool", AGE, measures=True), StreamRule("front", AGE))
    gate = FreshnessGate(rules, None, SETTLE)
    assert send_both(gate, ("joints", "front"), 1.0)
    assert not send_both(gate, ("front",), 1.1)
    assert not send_both(gate, ("joints", "front"), 1.2, finite=False)
    assert gate.list_counts()["joints"]["not_finite"] == 1 and gate.list_counts()["front"] == {"accepted": 3}
    assert not send_both(gate, ("joints",), 0.9)  # it went back
    last = StreamReading(10**9, 1.25, b"new")
    assert not gate.observe({"joints": last, "tool": StreamReading(10**9, 1.25, b"1", finite=False)}, 1.25)
    assert gate.list_counts()["joints"]["stands_still"] == 1 and gate.list_counts()["tool"] == {"not_finite": 1}
    assert not gate.observe(
        {"joints": StreamReading(1_250_000_000, 1.25, b"2"), "tool": StreamReading(9, 1.25, b"2", False)}, 1.25
    )
    assert gate.list_counts()["joints"]["accepted"] == 2  # one that is refused makes the other useless
    gate.forget()
    assert send_both(gate, ("joints", "front"), 1.2)
    assert gate.explain(1.2) == "tool: no message has come" == gate.explain(1.2, measuring=True)
    assert gate.explain(1.2, measuring=False) == ""
    assert gate.explain(1.5, measuring=False).startswith("front: no message for")
    with refuses("stream-unknown", "wrist", "joints, tool, front"):
        send_both(gate, ("wrist",), 1.3)


def test_an_unreadable_message_is_stale_at_once_and_a_readable_one_ends_that() -> None:
    gate = StreamGate(StreamRule("front", AGE), None, SETTLE)
    assert gate.take(StreamReading(1, 10.0, b"a"), 10.0) and gate.explain(10.0) == ""
    assert gate.take(StreamReading(2, 10.01, b"b", unreadable="another size"), 10.01) is False
    assert gate.explain(10.01) == "front: another size" and gate.counts["unreadable"] == 1
    assert gate.take(StreamReading(3, 10.02, b"c"), 10.02) and gate.explain(10.02) == ""
