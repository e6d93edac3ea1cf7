"""Who begins and ends a robot's episodes: the robot's simulation over topics, or a human."""

import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.bridge.operator_topics import OperatorListener
from embodied_rl.deployment.execution.tick import Mode, OperatorInput
from embodied_rl.deployment.robots.description import OperatorTopics
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.system.untrusted_files import make_printable

TEXT = "std_msgs/msg/String"
LONGEST = 4096
"""Characters of an outcome that is read."""
LOOKING_S = 0.02


@dataclass(frozen=True)
class EpisodeEnd:
    """How an episode ended. `failure` is a short text, empty for a success; `truncated`: nothing but time ended it."""

    success: bool
    failure: str
    truncated: bool
    reward: float


class EpisodeOperator(OperatorListener):
    """The operator's topics, whose labels are kept for whoever conducts episodes.

    Attributes:
        label: the last one that was said since the episode began; empty for none.
    """

    label = ""

    def read(self, mode: Mode, commanded: NDArray[np.float64]) -> OperatorInput:
        said = super().read(mode, commanded)
        self.label = said.label or self.label
        return said

    def find_end(self) -> EpisodeEnd | None:
        """Return the end that the operator's label means; None without one. An aborted one was cut short."""
        if not self.label:
            return None
        success, aborted = self.label == "success", self.label == "abort"
        failure = "" if success else "aborted by the operator" if aborted else "failure, says the operator"
        return EpisodeEnd(success, failure, aborted, float(success))


class SimulatedEpisodes:
    """Asks a simulated robot for episodes over its topics.

    Args:
        node: the transport. topics: of the robot's operator; they name reset and outcome.
    """

    def __init__(self, node: Transport, topics: OperatorTopics) -> None:
        self.end: EpisodeEnd | None = None
        self._index = -1
        self._make = node.messages.make
        self.publisher = node.create_publisher(topics.reset, TEXT, "latched")
        node.create_subscription(topics.outcome, TEXT, "latched", self._note)

    def ask(self, episode: Episode) -> None:
        """Ask for an episode."""
        self.end, self._index = None, episode.index
        said = {
            "index": episode.index, "task": episode.task, "seed": episode.seed,
            "initial_state": episode.initial_state, "split": episode.split,
        }  # fmt: skip
        self.publisher.publish(self._make(TEXT, data=json.dumps(said)))

    def _note(self, message: Any, received_ns: int, source_ns: int) -> None:
        end = read_end(str(message.data), self._index)
        self.end = end if end is not None else self.end


def read_end(text: str, index: int) -> EpisodeEnd | None:
    """Return how an episode ended; None for another episode's outcome, or a text that is none."""
    try:
        said = json.loads(text[:LONGEST])
        if said["index"] != index:
            return None
        success, truncated = said["success"], said["truncated"]
        failure, reward = said["failure"], float(said["reward"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    if type(success) is not bool or type(truncated) is not bool or type(failure) is not str or not np.isfinite(reward):
        return None
    return EpisodeEnd(success, failure[:100], truncated, reward)


class AttendedEpisodes:
    """Asks a human to set up the scene of each episode of a real robot, and waits.

    The human says that it is ready by the device's button `run`, or by taking hold of the dead man's switch.

    Args:
        topics: of the robot's operator. operator: who listens to them.
        wait_s: how long the human may take.

    Raises:
        UserError: a human could not say that the scene is ready, or how an episode ended.
    """

    def __init__(self, topics: OperatorTopics, operator: EpisodeOperator, wait_s: float) -> None:
        device = topics.device
        if device.run is None and device.deadman is None and not topics.deadman:
            raise UserError(
                "sim=robot: nobody could say that the scene is set up. Give the robot's file operator.device.run, a "
                "button, or operator.deadman."
            )
        if not topics.label and (device.success is None or device.failure is None):
            raise UserError(
                "sim=robot: nobody could say how an episode ended. Give the robot's file operator.label, or the "
                "buttons operator.device.success and failure."
            )
        self._operator, self._wait_s, self._has_button = operator, wait_s, device.run is not None

    def wait(self, words: str) -> None:
        """Ask for a scene, and wait until it is ready.

        What the operator says is looked at and left there: the control loop may read it meanwhile.

        Raises:
            UserError: nobody answered in time.
        """
        how = "press the button for run" if self._has_button else "take hold of the dead man's switch"
        print(f"Set up the scene for: {make_printable(words)}. Then {how}.", flush=True)
        pressed, held, until = self._count_runs(), self._operator.holds(), time.monotonic() + self._wait_s
        while time.monotonic() < until:
            before, held = held, self._operator.holds()
            if self._count_runs() > pressed if self._has_button else held and not before:
                return
            time.sleep(LOOKING_S)
        raise UserError(
            f"Nobody set up the scene within {self._wait_s:g} s. Give more time, sim.attend=<seconds>, or go on with "
            "resume."
        )

    def _count_runs(self) -> int:
        return self._operator.count_presses("run")
