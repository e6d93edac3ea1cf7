"""Conversion of messages to observations."""

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.tick import StreamReading
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fields import UnusableMessageError, make_reader
from embodied_rl.deployment.robots.pictures import Picture, check_picture, read_picture

LARGEST_STATE = float(np.finfo(np.float32).max)
_STAMPS = ("header", "stamp")
"""Fields that are left out of digests: a frozen sensor changes only these."""
SHORT = 4096
"""Bytes up to which an array is hashed itself; of a longer one its CRC is, four times as fast for a picture."""


class ObservationMapping:
    """Reads state and pictures from decoded messages by short topic name; `topics` includes those of CameraInfo."""

    def __init__(self, robot: RobotDescription) -> None:
        self._robot = robot
        self._readers = [
            [(term.topic, term.scale, make_reader(term.field, robot.topics[term.topic].name)) for term in entry.terms]
            for entry in robot.state
        ]
        self.state_topics = tuple(dict.fromkeys(term.topic for entry in robot.state for term in entry.terms))
        self.picture_topics = tuple(dict.fromkeys(camera.topic for camera in robot.cameras))
        infos = (camera.info for camera in robot.cameras if camera.info)
        self.topics = tuple(dict.fromkeys((*self.state_topics, *self.picture_topics, *infos)))

    def read_state(self, messages: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return the state in SI, float64, in the order of the description.

        Raises:
            UnusableMessageError: a message is missing or unusable, or a number is not finite as float32.
        """
        state = np.empty(len(self._readers))
        for index, terms in enumerate(self._readers):
            total = 0.0
            for topic, scale, read in terms:
                total += scale * read(self._find(messages, topic))
            if not abs(total) <= LARGEST_STATE:
                raise UnusableMessageError(
                    f"state.{self._robot.state[index].name} is {total:g}, which is too large for float32."
                )
            state[index] = total
        return state

    def read_pictures(self, messages: Mapping[str, Any]) -> dict[str, Picture]:
        """Return each camera's picture, as `read_picture`; new arrays."""
        return {
            camera.name: read_picture(
                self._find(messages, camera.topic), camera, messages.get(camera.info) if camera.info else None
            )
            for camera in self._robot.cameras
        }

    def explain_unreadable(self, topic: str, message: Any, others: Mapping[str, Any]) -> str:
        """Return why a camera's message is not a valid picture, with CameraInfo from `others`; empty if it is."""
        for camera in self._robot.cameras:
            if camera.topic == topic:
                try:
                    check_picture(message, camera, others.get(camera.info) if camera.info else None)
                except UnusableMessageError as error:
                    return str(error)
        return ""

    def _find(self, messages: Mapping[str, Any], topic: str) -> Any:
        found = messages.get(topic)
        if found is None:
            raise UnusableMessageError(f"{self._robot.topics[topic].name}: no message received.")
        return found


def make_stream(message: Any, source_ns: int, received_s: float) -> StreamReading:
    """Return the input of the freshness check for a message: its header stamp or publication time, and a digest."""
    stamp = read_stamp(message)
    return StreamReading(source_ns if stamp is None else stamp, received_s, digest_content(message))


def read_stamp(message: Any) -> int | None:
    """Return the stamp of a message's header in nanoseconds; None without one, or for 0."""
    header = getattr(message, "header", None)
    if header is None:
        return None
    return header.stamp.sec * 1_000_000_000 + header.stamp.nanosec or None


def digest_content(message: Any) -> bytes:
    """Return a digest of 16 bytes of a message without its stamps."""
    digest = hashlib.blake2b(digest_size=16)
    _add(digest, message)
    return digest.digest()


def _add(digest: "hashlib.blake2b", value: Any) -> None:
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value).tobytes() if value.nbytes <= SHORT else np.ascontiguousarray(value).data
        digest.update(data if value.nbytes <= SHORT else zlib.crc32(data).to_bytes(4))
    elif isinstance(value, list):
        digest.update(b"[%d" % len(value))
        for item in value:
            _add(digest, item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            if name not in _STAMPS:
                digest.update(name.encode())
                _add(digest, getattr(value, name))
    else:
        digest.update(repr(value).encode())
