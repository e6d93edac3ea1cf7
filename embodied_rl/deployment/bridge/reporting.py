"""What the bridge says of itself over topics: its status, and each control step that was executed."""

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
"""Of whoever wants every step: what does not fit into the depth while it is busy is lost."""
STATUS_HZ = 10.0
NO_EPISODE = -1


@dataclass(frozen=True)
class StepContext:
    """What was known when a control step began.

    Attributes:
        time_ns: by the clock that stamps messages. episode: its index; below 0 outside of one.
        number: control steps since the episode began. words: of the task.
        observed: topic → when its message was published, by its publisher's clock.
        label: how the operator judged the episode until the step ended; empty: not at all.
    """

    time_ns: int
    episode: int
    number: int
    words: str
    observed: Mapping[str, int]
    label: str = ""


class BridgeReporter:
    """Publishes JSON in std_msgs/msg/String. Who listens and hangs stops no robot: what it does not take is counted.

    Args:
        node: the transport.

    Attributes:
        unsent: reports that could not be sent. last_unsent: why the last of them could not.
    """

    def __init__(self, node: Transport) -> None:
        self.unsent, self.last_unsent = 0, ""
        self._make = node.messages.make
        self._status = node.create_publisher(STATUS, TEXT, "latched")
        self._steps = node.create_publisher(STEPS, TEXT, STEPS_QOS)

    def publish_status(self, said: Mapping[str, Any]) -> None:
        """Publish the status: any values, of which what JSON cannot say becomes null."""
        self._send(self._status, json.dumps(make_plain(said)))

    def publish_step(self, step: ExecutedStep, context: StepContext) -> None:
        """Publish a control step that has ended."""
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
        """Return how many subscriptions take its control steps."""
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
    """Return a value as JSON knows it: arrays as lists, what is not finite as null."""
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
    """Return the machine's load, means over 1, 5 and 15 minutes."""
    return [round(each, 2) for each in os.getloadavg()]
