"""Episodes as they are asked for over topics: which one runs, and whether the robot waits for the next one."""

import json
from dataclasses import dataclass
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.robots.description import OperatorTopics
from embodied_rl.runs.untrusted_files import shorten
from embodied_rl.transport.interface import Transport

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
        self._over: set[int] = set()
        if topics.reset:
            node.create_subscription(topics.reset, TEXT, "latched", self._note_reset)
        if topics.outcome:
            node.create_subscription(topics.outcome, TEXT, "latched", self._note_outcome)
        if topics.instruction and words is None:
            node.create_subscription(topics.instruction, TEXT, "latched", self._note_words)

    def is_over(self, asked: AskedEpisode) -> bool:
        """Return whether the robot said that an episode has ended."""
        return asked.index in self._over

    def _note_reset(self, message: Any, received_ns: int, source_ns: int) -> None:
        index = self._read_index(message.data, "who asks for an episode")
        if index is not None:
            self._over.discard(index)
            self.asked = AskedEpisode(index, source_ns)

    def _note_outcome(self, message: Any, received_ns: int, source_ns: int) -> None:
        index = self._read_index(message.data, "the robot's outcome")
        if index is not None and self.asked is not None and source_ns >= self.asked.source_ns:
            self._over = {index}

    def _note_words(self, message: Any, received_ns: int, source_ns: int) -> None:
        if len(message.data) > LONGEST_WORDS or not message.data.isprintable():
            self._refuse(f"the words of the task {message.data[:60]!r} are no line of {LONGEST_WORDS} characters")
            return
        self.words, self.words_ns = str(message.data), source_ns

    def _read_index(self, text: str, who: str) -> int | None:
        try:
            said = json.loads(text)
            index = said["index"]
            if type(index) is not int or not 0 <= index <= LARGEST_INDEX:
                raise UserError("index is no whole number")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._refuse(f"{who} sent {text[:60]!r}: {shorten(error)}")
            return None
        return index

    def _refuse(self, problem: str) -> None:
        self.refused, self.last_refusal = self.refused + 1, problem
