"""Topics of the operator: emergency stop, dead man's switch, teleoperation, labels, and requests of episodes."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.freshness import StreamGate
from embodied_rl.deployment.control.settings import CoreSettings, StreamRule
from embodied_rl.deployment.execution.operator_input import OperatorInputParser
from embodied_rl.deployment.execution.tick import Mode, OperatorInput, StreamReading
from embodied_rl.deployment.robots.description import OperatorTopics, RobotDescription
from embodied_rl.deployment.robots.mapping import make_stream
from embodied_rl.deployment.transport.emergency_stop import STOP_QOS, EmergencyStopState
from embodied_rl.deployment.transport.interface import Subscription, Transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import shorten

BOOL, TEXT, TWIST = "std_msgs/msg/Bool", "std_msgs/msg/String", "geometry_msgs/msg/Twist"
MAX_INSTRUCTION = 1000
"""Characters."""
MAX_INDEX = 2**63 - 1
"""Episode indices are keys of a policy's noise, int64."""
FIXED_NS = 2**63 - 1
"""`instruction_ns` of an instruction that holds for all episodes."""


class MessageTimes:
    """Times of one topic's messages on the core's clock, from header stamps, or publication times without a header.

    The rules are those of the robot's topics (`freshness.py`), except that the sender's clock is assumed not to pause:
    queued messages that arrive after a network failure keep their original age.

    Args:
        headers: use header stamps. Otherwise publication times count, such as with simulated time.
    """

    def __init__(self, name: str, max_age_s: float, headers: bool = True) -> None:
        self._headers = headers
        self._gate = StreamGate(StreamRule(name, max_age_s, may_repeat=True, pauses=False), None, CoreSettings.settle_s)

    def to_local_time(self, message: Any, source_ns: int, now_s: float) -> float | None:
        """Return the time of a message in seconds of the core's clock; None for a repeated or impossible stamp.

        Args:
            source_ns: publication time; 0 if the middleware does not give one.
        """
        stream = make_stream(message, source_ns, now_s)
        if not self._headers:
            stream = StreamReading(source_ns, now_s, stream.digest)
        if not stream.source_ns:
            return now_s
        return min(self._gate.said_s, now_s) if self._gate.take(stream, now_s) else None  # not after now, by rounding


class OperatorListener:
    """Listens to the operator's topics. Callbacks and the control loop may be two threads.

    Input that moves a robot counts from the time of its message (`MessageTimes`), and only if its stamp is new. Input
    that stops it counts at any age: an emergency stop, a released dead man's switch.

    Args:
        clock: seconds, the core's.
        timed: that clock is continuous; in lockstep it is not, and messages count from their arrival.
    """

    def __init__(
        self, node: Transport, robot: RobotDescription, clock: Callable[[], float], *, timed: bool = True
    ) -> None:
        topics = robot.operator
        self._parser, self._clock = OperatorInputParser(topics.device, robot.entry_limits), clock
        self._lock, self._held_for_s = threading.Lock(), topics.deadman_timeout_s
        self._requested: Mode | None = None
        self._topics, self._stop_state = topics, EmergencyStopState()
        self._stop: Subscription | None = None
        ages = {topics.deadman: topics.deadman_timeout_s, topics.teleop: topics.device.timeout_s}
        real = not robot.use_sim_time
        self._times = {name: MessageTimes(name, age, real) for name, age in ages.items() if name and timed}
        if topics.estop:
            note_stop = self._call(
                lambda message, _: self._parser.receive_estop(self._stop_state.update(self._stop, bool(message.data)))
            )
            self._stop = node.create_subscription(topics.estop, BOOL, STOP_QOS, note_stop)
        if topics.deadman:
            node.create_subscription(topics.deadman, BOOL, "deadman", self._call(self._on_deadman))
        if topics.label:
            note_label = self._call(lambda message, _: self._parser.receive_label(str(message.data)))
            node.create_subscription(topics.label, TEXT, "command", note_label)
        if topics.teleop:
            note = self._on_twist if topics.teleop_type == TWIST else self._on_joy
            node.create_subscription(topics.teleop, topics.teleop_type, "sensor_data", self._call(note))

    def request_mode(self, mode: Mode | None) -> None:
        """Request a mode for the operator until another one is requested; None withdraws the request."""
        self._requested = mode

    def read(self, mode: Mode, commanded: NDArray[np.float64]) -> OperatorInput:
        """Return the operator's present input, in `mode`, with `commanded` [A] the last command."""
        with self._lock:
            said = self._parser.read(self._clock(), mode, commanded)
        if said.wanted is None:
            return replace(said, wanted=self._requested)
        self._requested = None  # so that it does not undo a takeover
        return said

    def count_presses(self, button: str) -> int:
        """Return how often a button of the device was pressed."""
        with self._lock:
            return self._parser.presses[button]

    def holds(self) -> bool:
        """Return whether the dead man's switch is held now."""
        with self._lock:
            held_s = self._parser.held_s
        return held_s is not None and self._clock() - held_s <= self._held_for_s

    @property
    def stopped(self) -> str:
        """Description of the publishers that hold the emergency stop; empty if none does."""
        return self._stop_state.describe(self._stop)

    @property
    def estop_fault(self) -> str:
        """Reason for which messages of an emergency stop publisher do not arrive; empty if they do."""
        faults = () if self._stop is None else self._stop.find_mismatches()
        return f"{faults[0]}, so this emergency stop is not received" if faults else ""

    def _call(self, note: Callable[[Any, int], None]) -> Callable[[Any, int, int], None]:
        def call(message: Any, received_ns: int, source_ns: int) -> None:
            with self._lock:
                note(message, source_ns)

        return call

    def _to_local_time(self, topic: str, message: Any, source_ns: int) -> float | None:
        """Return the time of a message on the core's clock; None if its stamp is not new."""
        now_s = self._clock()
        return self._times[topic].to_local_time(message, source_ns, now_s) if topic in self._times else now_s

    def _on_deadman(self, message: Any, source_ns: int) -> None:
        sent_s = self._to_local_time(self._topics.deadman, message, source_ns)
        if sent_s is not None or not message.data:
            self._parser.receive_deadman(bool(message.data), sent_s or 0.0)

    def _on_joy(self, message: Any, source_ns: int) -> None:
        sent_s, buttons = self._to_local_time(self._topics.teleop, message, source_ns), message.buttons.tolist()
        if sent_s is None or self._clock() - sent_s > self._parser.device.timeout_s:
            self._parser.receive_old_buttons(buttons)
        else:
            self._parser.receive_joy(message.axes.tolist(), buttons, sent_s)

    def _on_twist(self, message: Any, source_ns: int) -> None:
        sent_s = self._to_local_time(self._topics.teleop, message, source_ns)
        linear, angular = ((part.x, part.y, part.z) for part in (message.linear, message.angular))
        if sent_s is not None:
            self._parser.receive_twist(linear, angular, sent_s)


@dataclass(frozen=True)
class RequestedEpisode:
    """An episode, and the publication time of its request, in ns of the publisher's clock."""

    index: int
    source_ns: int


class EpisodeTracker:
    """Tracks episode requests, outcomes and the task instruction. Callbacks and readers may be two threads.

    Args:
        instruction: of the task, if it does not come from a topic.

    Attributes:
        instruction: of the present task; None before the first one. instruction_ns: its publication time.
        refused: number of malformed messages.
    """

    def __init__(self, node: Transport, topics: OperatorTopics, instruction: str | None) -> None:
        self.instruction, self.instruction_ns = instruction, 0 if instruction is None else FIXED_NS
        self.requested: RequestedEpisode | None = None
        self.refused, self.last_refusal = 0, ""
        self._scene_ns = 0
        self._labels: dict[int, str] = {}
        if topics.reset:
            node.create_subscription(topics.reset, TEXT, "latched", self._on_reset)
        if topics.outcome:
            node.create_subscription(topics.outcome, TEXT, "latched", self._on_outcome)
        if topics.instruction and instruction is None:
            node.create_subscription(topics.instruction, TEXT, "latched", self._on_instruction)

    def find_min_source_ns(self, episode: RequestedEpisode) -> int:
        """Return the time after which messages show an episode's scene, in ns of the transport.

        After a request, the robot publishes the scene of the previous episode until it has reset. It publishes the new
        instruction first, on some clocks with the same time as the messages that follow.
        """
        if episode == self.requested:
            return max(episode.source_ns, self._scene_ns - 1)
        return episode.source_ns

    def is_over(self, episode: RequestedEpisode) -> bool:
        """Return whether the robot has published the outcome of an episode."""
        return episode.index in self._labels

    def find_label(self, episode: RequestedEpisode) -> str:
        """Return the robot's outcome of an episode: success, failure, or empty if unknown."""
        return self._labels.get(episode.index, "")

    def _on_reset(self, message: Any, received_ns: int, source_ns: int) -> None:
        request = self._parse(message.data, "episode request")
        if request is not None:
            self._labels.pop(request["index"], None)
            self.requested = RequestedEpisode(request["index"], source_ns)
            # the instruction may arrive before the request
            self._scene_ns = self.instruction_ns if source_ns <= self.instruction_ns < FIXED_NS else 0

    def _on_outcome(self, message: Any, received_ns: int, source_ns: int) -> None:
        outcome = self._parse(message.data, "outcome")
        if outcome is not None and self.requested is not None and source_ns >= self.requested.source_ns:
            success = outcome.get("success")
            self._labels = {outcome["index"]: "success" if success is True else "failure" if success is False else ""}

    def _on_instruction(self, message: Any, received_ns: int, source_ns: int) -> None:
        if len(message.data) > MAX_INSTRUCTION or not message.data.isprintable():
            self._refuse(f"instruction {message.data[:60]!r} is not one line of at most {MAX_INSTRUCTION} characters")
            return
        self.instruction, self.instruction_ns = str(message.data), source_ns
        if self.requested is not None and source_ns >= self.requested.source_ns and not self._scene_ns:
            self._scene_ns = source_ns

    def _parse(self, text: str, what: str) -> dict[str, Any] | None:
        try:
            found = json.loads(text)
            index = found["index"]
            if type(index) is not int or not 0 <= index <= MAX_INDEX:
                raise UserError("index must be a whole number", code="episode-index-invalid")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._refuse(f"{what} {text[:60]!r}: {shorten(error)}")
            return None
        return found

    def _refuse(self, problem: str) -> None:
        self.refused, self.last_refusal = self.refused + 1, problem
