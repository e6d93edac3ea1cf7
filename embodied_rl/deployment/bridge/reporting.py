"""Topics of the bridge: its status, and the executed control steps."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.deployment.execution.tick import ExecutedStep
from embodied_rl.deployment.recording.steps import STATUS, STEPS, ControlStep
from embodied_rl.deployment.transport.interface import Publisher, Transport
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import TransportError

TEXT = "std_msgs/msg/String"
STEPS_QOS = QoS("reliable", depth=500)
"""A subscriber that falls behind by more than the depth loses steps."""
STATUS_HZ = 10.0
NO_EPISODE = -1


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
    """Publishes JSON in std_msgs/msg/String. A blocked subscriber does not stop the robot; failed sends are counted.

    Args:
        node: the transport.

    Attributes:
        unsent: number of failed sends. last_unsent: the last error.
    """

    def __init__(self, node: Transport) -> None:
        self.unsent, self.last_unsent = 0, ""
        self._make = node.messages.make
        self._status = node.create_publisher(STATUS, TEXT, "latched")
        self._steps = node.create_publisher(STEPS, TEXT, STEPS_QOS)

    def publish_status(self, status: Mapping[str, Any]) -> None:
        """Publish the status; values that JSON does not have become null."""
        self._send(self._status, json.dumps(make_plain(status)))

    def publish_step(self, step: ExecutedStep, context: StepContext) -> None:
        """Publish a finished control step."""
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


def measure_load() -> list[float]:
    """Return the machine's load averages over 1, 5 and 15 minutes."""
    return [round(each, 2) for each in os.getloadavg()]
