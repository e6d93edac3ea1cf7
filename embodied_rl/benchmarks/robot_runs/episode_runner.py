"""Run episodes on a robot over topics: request an episode, wait for its outcome, record what was executed.

This module sends no commands; the bridge, which receives the same topics, does.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.bridge.reporting import STATUS, STEPS, STEPS_QOS, TEXT
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.pictures import read_picture
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.deployment.transport.qos import QoS
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Episode

_SECONDS = re.compile(r" (for|takes|took) [0-9.]+ s\b.*")
FILM_QOS = QoS("best_effort", depth=50)
LOOKING_S = 0.1
LONGEST_S = 600.0
"""Default timeout of a wait, in seconds."""


@dataclass
class RobotEpisode:
    """Result of an episode.

    Attributes:
        outcome: the robot's outcome message.
        steps: the bridge's message of each control step.
        frames: uint8 [h, w, 3], pictures of the first camera, if requested.
        instruction: instruction of the task.
    """

    episode: Episode
    outcome: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    frames: list[NDArray[np.uint8]] = field(default_factory=list[NDArray[np.uint8]])
    instruction: str = ""

    @property
    def executed(self) -> NDArray[np.float64]:
        """Return the actions that were executed, float64 [steps, A], NaN where a command has no action."""
        rows = [each["executed"] for each in self.steps]
        return np.array([[np.nan if value is None else value for value in row] for row in rows], np.float64)

    def count_sources(self) -> Counter[str]:
        """Count the control steps by source: policy, safety (the filter changed the action), hold …"""
        return Counter(str(each["source"]) for each in self.steps)

    def count_reasons(self, source: str) -> Counter[str]:
        """Count the control steps of a source by reason, without the times in it."""
        return Counter(why for each in self.steps if each["source"] == source for why in list_reasons(each["why"]))


def list_reasons(why: str) -> list[str]:
    """Return the different reasons in a text, without the numbers of seconds."""
    return list(dict.fromkeys(_SECONDS.sub("", part).strip() for part in why.split(";") if part.strip()))


class RobotEpisodeRunner:
    """Runs episodes in sequence.

    Args:
        node: a transport that only this object spins.
        robot: description of the robot; its topics are used.
        check: function that raises if a required process has ended; called while waiting.

    Raises:
        UserError: the robot lacks the topics.
    """

    def __init__(self, node: Transport, robot: RobotDescription, check: Callable[[], None]) -> None:
        topics = robot.operator
        if not (topics.reset and topics.outcome):
            raise UserError(
                f"{robot.name}: its file needs operator.reset and operator.outcome, the topics that request episodes "
                "and report their outcomes. Use embodied-rl bridge for a robot that is reset by hand.",
                code="robot-topic-missing",
            )
        self._node, self.check = node, check
        self._episode: RobotEpisode | None = None
        self.status: dict[str, Any] = {}
        self.seen = 0
        """Number of messages of the bridge so far; waits check it for progress."""
        self._reset = node.create_publisher(topics.reset, TEXT, "latched")
        node.create_subscription(topics.outcome, TEXT, "latched", self._on_outcome)
        node.create_subscription(STATUS, TEXT, "latched", self._on_status)
        node.create_subscription(STEPS, TEXT, STEPS_QOS, self._on_step)
        if topics.instruction:
            node.create_subscription(topics.instruction, TEXT, "latched", self._on_instruction)

    def film(self, robot: RobotDescription) -> None:
        """Record the images of the robot's first camera from now on."""
        if not robot.cameras:
            return
        camera = robot.cameras[0]

        def note(message: Any, received_ns: int, source_ns: int) -> None:
            if self._episode is not None and not self._episode.outcome:
                self._episode.frames.append(read_picture(message, camera, None))

        topic = robot.topics[camera.topic]
        self._node.create_subscription(topic.name, topic.type_name, FILM_QOS, note)

    def wait_for(
        self, what: str, condition: Callable[[], bool], patience_s: float, longest_s: float = LONGEST_S
    ) -> None:
        """Spin until a condition holds.

        Raises:
            RunFailed: it does not hold after `longest_s`, or after `patience_s` without a message of the bridge; or a
                process has ended.
        """
        began = since = time.monotonic()
        seen = self.seen
        while not self._node.spin_until(condition, LOOKING_S):
            self.check()
            now = time.monotonic()
            if self.seen != seen:
                seen, since = self.seen, now
            if now - since >= patience_s or now - began >= longest_s:
                silent = f"The bridge was silent for {now - since:.0f} s. " if now - since >= patience_s else ""
                raise RunFailed(f"{what} did not happen within {now - began:.0f} s. {silent}{self.describe()}")

    def wait_for_bridge(self, patience_s: float, subscribers: int = 0) -> None:
        """Wait until the bridge waits for an episode, and requests reach at least `subscribers` nodes.

        A subscriber that is matched later, such as a recorder, would get the latest request alone.
        """
        ready = lambda: self._is_waiting(None) and self._reset.count_matched() >= subscribers  # noqa: E731
        self.wait_for("The bridge's start", ready, patience_s)

    def begin(self, episode: Episode) -> RobotEpisode:
        """Request an episode, and return the record that is filled from now on."""
        self._episode = record = RobotEpisode(episode)
        names = ("index", "task", "seed", "initial_state", "split")
        asked = {name: getattr(episode, name) for name in names}
        self._reset.publish(self._node.messages.make(TEXT, data=json.dumps(asked)))
        return record

    def run_episode(self, episode: Episode, patience_s: float, longest_s: float) -> RobotEpisode:
        """Run one episode to its end.

        Args:
            episode: as the simulator knows it.
            patience_s: maximum seconds without a message of the bridge.
            longest_s: timeout of the episode in seconds.

        Raises:
            RunFailed: it did not end in time, or a process has ended.
        """
        record = self.begin(episode)
        over = lambda: bool(record.outcome) and self._is_waiting(episode.index)  # noqa: E731
        self.wait_for(f"The end of episode {episode.index}", over, patience_s, longest_s)
        expected = record.outcome.get("steps")
        self._node.spin_until(lambda: len(record.steps) >= (expected or 0), LOOKING_S)
        self._episode = None
        return record

    def describe(self) -> str:
        """Describe the bridge's last status."""
        said = self.status
        if not said:
            return "The bridge has not published a status."
        why = f": {said['why']}" if said.get("why") else ""
        return f"The bridge is {said.get('state')}, mode {said.get('mode')}{why}."

    def _is_waiting(self, index: int | None) -> bool:
        said = self.status
        return bool(said.get("waiting")) and index in (None, said.get("episode"))

    def _on_status(self, message: Any, received_ns: int, source_ns: int) -> None:
        self.status, self.seen = _read(message.data, STATUS), self.seen + 1

    def _on_step(self, message: Any, received_ns: int, source_ns: int) -> None:
        said = _read(message.data, STEPS)
        self.seen += 1
        if self._episode is not None and said.get("episode") == self._episode.episode.index:
            self._episode.steps.append(said)

    def _on_outcome(self, message: Any, received_ns: int, source_ns: int) -> None:
        said = _read(message.data, "the robot's outcome")
        if self._episode is not None and said.get("index") == self._episode.episode.index:
            self._episode.outcome = said

    def _on_instruction(self, message: Any, received_ns: int, source_ns: int) -> None:
        if self._episode is not None:
            self._episode.instruction = message.data


def _read(text: str, who: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise RunFailed(f"{who} is not a JSON object: {text[:80]!r}.")
    return said


def add_counts(counters: Iterable[Counter[str]]) -> dict[str, int]:
    """Return the sum of counters, the most frequent first."""
    return dict(sum(counters, Counter[str]()).most_common())
