"""Messages of steps equal those of a slow reference, in linear time."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.deployment.recording import alignment
from embodied_rl.deployment.recording.alignment import SLACK_NS, ObservationFinder, StepSources
from embodied_rl.deployment.recording.mcap_reader import RecordedChannel, RecordedMessage
from embodied_rl.deployment.recording.steps import STEPS, ControlStep, RecordedStep
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.interfaces.sim import Source

ROBOT = load_robot("tabletop")
SHORTS = ("joints", "front")
TOPICS = {short: ROBOT.topics[short].name for short in SHORTS}
Found = list[tuple[int, dict[str, bytes]]]


class FakeRecording:
    """A recording of given messages: (topic, received, published), in the order of receiving."""

    def __init__(self, messages: Iterable[tuple[str, int, int]]) -> None:
        channels = {name: RecordedChannel(name, "", "cdr", "") for name in (STEPS, *TOPICS.values())}
        self._messages = [
            RecordedMessage(channels[topic], str(number).encode(), received_ns, source_ns)
            for number, (topic, received_ns, source_ns) in enumerate(messages)
        ]

    def read(self, topics: Any) -> Iterator[RecordedMessage]:
        yield from self._messages


class Reference:
    """Slow reference: compares each message with each step."""

    def __init__(self, steps: Sequence[RecordedStep]) -> None:
        self.waiting = deque(StepSources(step) for step in steps)
        self.at = {sources.step.position: sources for sources in self.waiting}
        unnamed = [each for each in self.waiting if not each.step.control.observed]
        self.timed = {short: deque(unnamed) for short in SHORTS}
        self.newest: dict[str, RecordedMessage] = {}
        self.found: Found = []

    def run(self, messages: Iterable[RecordedMessage]) -> Found:
        position = -1
        for message in messages:
            if message.channel.topic == STEPS:
                position += 1
                if position in self.at:
                    self.at[position].passed = True
            else:
                self.note(next(short for short in SHORTS if TOPICS[short] == message.channel.topic), message)
            while self.waiting and self.is_over(self.waiting[0], message.received_ns):
                self.take()
        while self.waiting:
            self.take()
        return self.found

    def note(self, short: str, message: RecordedMessage) -> None:
        timed = self.timed[short]
        while timed and timed[0].step.control.time_ns < message.received_ns:
            sources = timed.popleft()
            if short in self.newest:
                sources.found[short] = self.newest[short]
        self.newest[short] = message
        for sources in self.waiting:
            named = sources.step.control.observed.get(message.channel.topic) == message.source_ns
            if named and not (sources.passed and short in sources.found):
                sources.found[short] = message

    def is_over(self, sources: StepSources, now_ns: int) -> bool:
        complete = sources.passed and len(sources.found) == len(SHORTS)
        return complete or now_ns > sources.step.received_ns + SLACK_NS

    def take(self) -> None:
        sources = self.waiting.popleft()
        for short in SHORTS if not sources.step.control.observed else ():
            if short in self.newest and self.newest[short].received_ns <= sources.step.control.time_ns:
                sources.found.setdefault(short, self.newest[short])
        self.found.append((sources.step.position, {short: each.raw for short, each in sources.found.items()}))


def find(tape: FakeRecording, steps: Sequence[RecordedStep]) -> Found:
    finder = ObservationFinder(ROBOT, SHORTS, steps)
    return [
        (each.step.position, {short: message.raw for short, message in each.found.items()})
        for each in finder.find(tape)  # type: ignore[arg-type]
    ]


def make_step(position: int, time_ns: int, received_ns: int, observed: dict[str, int]) -> RecordedStep:
    control = ControlStep(time_ns, 0, position, "run", Source.POLICY, observed=observed)
    return RecordedStep(control, position, received_ns)


@st.composite
def recordings(draw: st.DrawFn) -> tuple[FakeRecording, list[RecordedStep]]:
    """A recording with repeated and decreasing times, and steps that observed some of them or none."""
    times = st.integers(0, 6).map(lambda n: n * SLACK_NS // 3)
    kinds = st.sampled_from([STEPS, *TOPICS.values()])
    messages = draw(st.lists(st.tuples(kinds, times, st.integers(0, 3)), max_size=40))
    if draw(st.booleans()):
        messages = sorted(messages, key=lambda each: each[1])
    observed = st.dictionaries(st.sampled_from([*TOPICS.values(), "/other"]), st.integers(0, 3))
    positions = draw(st.lists(st.integers(0, 12), unique=True, max_size=12).map(sorted))
    return FakeRecording(messages), [make_step(each, draw(times), draw(times), draw(observed)) for each in positions]


@pytest.mark.thorough
@given(recordings())
def test_messages_equal_the_reference(drawn: tuple[FakeRecording, list[RecordedStep]]) -> None:
    tape, steps = drawn
    assert find(tape, steps) == Reference(steps).run(tape.read(()))


def test_a_message_of_the_same_time_after_the_step_is_not_used() -> None:
    joints, front = TOPICS["joints"], TOPICS["front"]
    messages = [(joints, 1, 7), (STEPS, 2, 2), (STEPS, 3, 3), (joints, 4, 7)]
    waits, whole = make_step(0, 2, 2, {front: 9}), make_step(1, 3, 3, {joints: 7})
    assert find(FakeRecording(messages), [waits, whole]) == [(0, {}), (1, {"joints": b"0"})]


def test_the_work_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps observed one time, which all messages have: comparing all pairs needs 90,000 accesses."""
    accesses = [0]

    class CountedSources(StepSources):
        @property
        def passed(self) -> bool:  # type: ignore[override]
            accesses[0] += 1
            return self.__dict__.get("was", False)

        @passed.setter
        def passed(self, value: bool) -> None:
            self.__dict__["was"] = value

    monkeypatch.setattr(alignment, "StepSources", CountedSources)
    count = 300
    steps = [make_step(each, each, each, {TOPICS["joints"]: 7}) for each in range(count)]
    messages = [(TOPICS["joints"], each, 7) for each in range(count)] + [(STEPS, each, each) for each in range(count)]
    found = find(FakeRecording(messages), steps)
    assert [each for _, each in found] == [{"joints": str(count - 1).encode()}] * count
    assert accesses[0] < 10 * (len(steps) + len(messages))
