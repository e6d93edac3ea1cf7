"""Episodes as they are asked for over topics: which one runs, and whether the robot waits for the next one."""

import json
from dataclasses import dataclass
from typing import Any

from embodied_rl.deployment.robots.description import OperatorTopics
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import shorten

TEXT = "std_msgs/msg/String"
LONGEST_WORDS = 1000
LARGEST_INDEX = 2**63 - 1
"""Numbers of episodes are keys of a policy's noise, int64."""
GIVEN = 2**63 - 1
"""When words were said that hold for all episodes."""


@dataclass(frozen=True)
class AskedEpisode:
    """An episode that somebody asked for: its index, and when that was published, in ns of the publisher's clock."""

    index: int
    source_ns: int


class EpisodeDesk:
    """Listens to who asks for episodes, and to the robot that ends them. Callbacks and readers may be two threads.

    Args:
        node: the transport. topics: of the operator; empty names are not listened to.
        words: of the task, where no topic says them.

    Attributes:
        words: of the present task; None: nobody has said them. words_ns: when they were published.
        asked: the newest episode that was asked for; None before the first one.
        refused: messages that could not be understood. last_refusal: what was wrong with the last one.
    """

    def __init__(self, node: Transport, topics: OperatorTopics, words: str | None) -> None:
        self.words, self.words_ns = words, 0 if words is None else GIVEN
        self.asked: AskedEpisode | None = None
        self.refused, self.last_refusal = 0, ""
        self._shown_ns = 0
        self._over: dict[int, str] = {}
        if topics.reset:
            node.create_subscription(topics.reset, TEXT, "latched", self._note_reset)
        if topics.outcome:
            node.create_subscription(topics.outcome, TEXT, "latched", self._note_outcome)
        if topics.instruction and words is None:
            node.create_subscription(topics.instruction, TEXT, "latched", self._note_words)

    def find_floor(self, asked: AskedEpisode) -> int:
        """Return after when what a robot publishes shows an episode's scene, in ns of the transport.

        Between the request and the robot's answer it goes on publishing the scene before. It says the new words first,
        and by some clocks at the same time as what follows them.
        """
        return max(asked.source_ns, self._shown_ns - 1) if asked == self.asked else asked.source_ns

    def is_over(self, asked: AskedEpisode) -> bool:
        """Return whether the robot said that an episode has ended."""
        return asked.index in self._over

    def find_label(self, asked: AskedEpisode) -> str:
        """Return how an episode ended, by the robot: success, failure, or nothing where it does not say."""
        return self._over.get(asked.index, "")

    def _note_reset(self, message: Any, received_ns: int, source_ns: int) -> None:
        said = self._read(message.data, "who asks for an episode")
        if said is not None:
            self._over.pop(said["index"], None)
            self.asked = AskedEpisode(said["index"], source_ns)
            self._shown_ns = self.words_ns if source_ns <= self.words_ns < GIVEN else 0  # words may come first

    def _note_outcome(self, message: Any, received_ns: int, source_ns: int) -> None:
        said = self._read(message.data, "the robot's outcome")
        if said is not None and self.asked is not None and source_ns >= self.asked.source_ns:
            success = said.get("success")
            self._over = {said["index"]: "success" if success is True else "failure" if success is False else ""}

    def _note_words(self, message: Any, received_ns: int, source_ns: int) -> None:
        if len(message.data) > LONGEST_WORDS or not message.data.isprintable():
            self._refuse(f"the words of the task {message.data[:60]!r} are no line of {LONGEST_WORDS} characters")
            return
        self.words, self.words_ns = str(message.data), source_ns
        if self.asked is not None and source_ns >= self.asked.source_ns and not self._shown_ns:
            self._shown_ns = source_ns

    def _read(self, text: str, who: str) -> dict[str, Any] | None:
        try:
            said = json.loads(text)
            index = said["index"]
            if type(index) is not int or not 0 <= index <= LARGEST_INDEX:
                raise UserError("index is no whole number")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._refuse(f"{who} sent {text[:60]!r}: {shorten(error)}")
            return None
        return said

    def _refuse(self, problem: str) -> None:
        self.refused, self.last_refusal = self.refused + 1, problem
