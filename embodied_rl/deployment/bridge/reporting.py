"""What a bridge reports: its status and executed control steps on topics, and lines on the console."""

import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from embodied_rl.deployment.execution.tick import ExecutedStep, Mode, State
from embodied_rl.deployment.recording.steps import STATUS, STEPS, ControlStep
from embodied_rl.deployment.transport.interface import Publisher, Transport
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import TransportError
from embodied_rl.system.untrusted_files import make_printable

TEXT = "std_msgs/msg/String"
STEPS_QOS = QoS("reliable", depth=500)
"""A subscriber that falls behind by more than the depth loses steps."""
STATUS_HZ = 10.0
NO_EPISODE = -1
SETTLED_S = 0.5
"""Seconds that a status must last before it is printed."""
MAX_LINES = 100
"""Size of the queue of lines. If the terminal blocks and the queue is full, further lines are dropped."""
CLOSING_S = 1.0
_NUMBERS = re.compile(r"[0-9][0-9.]*")


@dataclass(frozen=True)
class StepContext:
    """Data of the start of a control step.

    Attributes:
        time_ns: of the clock of message stamps. episode: its index; `NO_EPISODE` outside of one.
        number: control steps since the start of the episode. words: the task instruction.
        observed: topic → publication time of its message, of its publisher's clock.
        label: the operator's label of the episode, if given before the step ended; else empty.
    """

    time_ns: int
    episode: int
    number: int
    words: str
    observed: Mapping[str, int]
    label: str = ""


class BridgeReporter:
    """Publishes JSON in std_msgs/msg/String. A blocked subscriber does not stop the robot; `unsent` counts failures."""

    def __init__(self, node: Transport) -> None:
        self.unsent, self.last_unsent = 0, ""
        self._make = node.messages.make
        self._status = node.create_publisher(STATUS, TEXT, "latched")
        self._steps = node.create_publisher(STEPS, TEXT, STEPS_QOS)

    def publish_status(self, status: Mapping[str, Any]) -> None:
        """Publish the status; values that JSON does not have become null."""
        self._send(self._status, json.dumps(make_plain(status)))

    def publish_step(self, step: ExecutedStep, context: StepContext) -> None:
        made = ControlStep(
            time_ns=context.time_ns,
            episode=context.episode,
            step=context.number,
            mode=str(step.mode),
            source=step.source,
            proposed=_list(step.proposed),
            executed=_list(step.executed),
            command=_list(step.command),
            policy_version=step.policy_version,
            sequence=step.sequence,
            why=step.why,
            instruction=context.words,
            label=context.label,
            observed=context.observed,
        )
        self._send(self._steps, made.to_json())

    def count_listeners(self) -> int:
        """Return the number of subscribers of control steps."""
        return self._steps.count_matched()

    def _send(self, publisher: Publisher, text: str) -> None:
        try:
            publisher.publish(self._make(TEXT, data=text))
        except TransportError as error:
            self.unsent += 1
            self.last_unsent = str(error)


def _list(values: Any) -> tuple[float, ...] | None:
    return None if values is None else tuple(map(float, values))


def make_plain(value: Any) -> Any:
    """Return a value for JSON: arrays as lists, non-finite numbers as null."""
    if isinstance(value, Mapping):
        return {str(name): make_plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [make_plain(each) for each in value]
    if isinstance(value, np.generic):
        return make_plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def format_status_line(status: Mapping[str, Any]) -> str:
    """Return the bridge's status as one line."""
    why = str(status["why"])
    if status["waiting"]:
        return f"waits for an episode{f': {why}' if why else ''}"
    if status["state"] != State.ACTIVE:
        return f"nothing is commanded: {why}" if why else "nothing is commanded"
    if status["mode"] == Mode.RUN and not why:
        return "run: the policy drives the robot" if not status["dry_run"] else "run: the policy would drive the robot"
    return f"{status['mode']}: {why}" if why else str(status["mode"])


class StatusPrinter:
    """Prints the robot's status when it changes, in its own thread, because `print_line` may block."""

    def __init__(
        self, print_line: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._print, self._clock = print_line or partial(print, flush=True), clock
        self._lines = queue.Queue[str | None](MAX_LINES)
        self._last_printed, self._current, self._since = "", "", 0.0
        self._thread = threading.Thread(target=self._work, name="status printer", daemon=True)
        self._thread.start()

    def update(self, line: str) -> None:
        """Set the present status line. It is printed if it lasts and differs by more than numbers, such as seconds."""
        words, now = _NUMBERS.sub("", line), self._clock()
        if words != self._current:
            self._current, self._since = words, now
        elif words != self._last_printed and now - self._since >= SETTLED_S:
            self._last_printed = words
            self.add_line(line)

    def add_line(self, line: str) -> None:
        """Queue one line for printing."""
        with suppress(queue.Full):
            self._lines.put_nowait(make_printable(line))

    def close(self) -> None:
        """Print the queued lines, for at most `CLOSING_S`."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(CLOSING_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _work(self) -> None:
        with suppress(OSError):  # the terminal was closed; the status topic still has everything
            while (line := self._lines.get()) is not None:
                self._print(line)
