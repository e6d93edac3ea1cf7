"""What the bridge says of itself over topics: its status, and each control step that was executed."""

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_rl.deployment.tick import ExecutedStep
from embodied_rl.transport.interface import Transport
from embodied_rl.transport.qos import QoS

STATUS, STEPS = "/policy_bridge/status", "/policy_bridge/steps"
TEXT = "std_msgs/msg/String"
STEPS_QOS = QoS("reliable", depth=500)
"""Of whoever wants every step: what does not fit into the depth while it is busy is lost."""
STATUS_HZ = 10.0


class BridgeReporter:
    """Publishes JSON in std_msgs/msg/String.

    Args:
        node: the transport.
    """

    def __init__(self, node: Transport) -> None:
        self._make = node.messages.make
        self._status = node.create_publisher(STATUS, TEXT, "latched")
        self._steps = node.create_publisher(STEPS, TEXT, STEPS_QOS)

    def publish_status(self, said: Mapping[str, Any]) -> None:
        """Publish the status: any JSON values."""
        self._status.publish(self._make(TEXT, data=json.dumps(make_plain(said))))

    def publish_step(self, step: ExecutedStep, episode: int | None) -> None:
        """Publish a control step of an episode, or of no counted one."""
        said = {
            "time": step.time, "episode": episode, "mode": step.mode, "source": step.source.name.lower(),
            "proposed": step.proposed, "executed": step.executed, "command": step.command,
            "policy_version": step.policy_version, "sequence": step.sequence, "step": step.step, "why": step.why,
        }  # fmt: skip
        self._steps.publish(self._make(TEXT, data=json.dumps(make_plain(said))))


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
