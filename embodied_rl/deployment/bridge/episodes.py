"""Episodes that are requested over topics."""

import json
from dataclasses import dataclass
from typing import Any

from embodied_rl.deployment.robots.description import OperatorTopics
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import shorten

TEXT = "std_msgs/msg/String"
MAX_INSTRUCTION = 1000
"""Characters."""
MAX_INDEX = 2**63 - 1
"""Episode indices are keys of a policy's noise, int64."""
FIXED_NS = 2**63 - 1
"""`instruction_ns` of an instruction that holds for all episodes."""


@dataclass(frozen=True)
class RequestedEpisode:
    """A requested episode: its index, and the publication time of the request, in ns of the publisher's clock."""

    index: int
    source_ns: int


class EpisodeTracker:
    """Tracks episode requests, outcomes and the task instruction. Callbacks and readers may be two threads.

    Args:
        node: the transport. topics: of the operator; topics with an empty name are skipped.
        instruction: of the task, if it does not come from a topic.

    Attributes:
        instruction: of the present task; None before the first one. instruction_ns: its publication time.
        requested: the newest requested episode; None before the first one.
        refused: number of malformed messages. last_refusal: the error of the last one.
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
