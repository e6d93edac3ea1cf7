"""State of an emergency stop with several publishers on one topic; each releases only its own stop."""

from embodied_rl.deployment.transport.interface import Subscription
from embodied_rl.deployment.transport.qos import QoS

STOP_QOS = QoS("reliable", "transient_local", depth=100)
"""Requested QoS of an emergency stop. With a depth of 1, a "false" of one publisher could overwrite an unread "true" of
another one."""
UNKNOWN = b""
"""A publisher that the transport does not identify. A stop that it pressed cannot be released."""


class EmergencyStopState:
    """The publishers that pressed the emergency stop and have not released it.

    A publisher that disconnects without releasing keeps the stop active.
    """

    def __init__(self) -> None:
        self._pressed_by: set[bytes] = set()

    def update(self, subscription: Subscription | None, pressed: bool) -> bool:
        """Process a message in its subscription's callback; return whether the stop is active."""
        who = UNKNOWN if subscription is None else identify_publisher(subscription)
        if pressed:
            self._pressed_by.add(who)
        elif who != UNKNOWN:
            self._pressed_by.discard(who)
        return bool(self._pressed_by)

    def describe(self, subscription: Subscription | None) -> str:
        """Return which nodes keep the stop active, or an empty text if none. Thread-safe."""
        pressed_by = self._pressed_by.copy()
        if not pressed_by or subscription is None:
            return ""
        topic = subscription.topic
        publishers = subscription.transport.list_publishers(topic)
        nodes = {each.gid: each.node or "an unnamed node" for each in publishers}
        names = sorted({nodes.get(each, "a node that has disconnected") for each in pressed_by})
        return f"{topic}: the emergency stop is pressed by {', '.join(names)}"


def identify_publisher(subscription: Subscription) -> bytes:
    """Return the publisher of the message whose callback runs.

    If the transport does not identify publishers: the only publisher of the topic, or `UNKNOWN` if there are several.
    """
    if subscription.publisher is not None:
        return subscription.publisher
    gids = {each.gid for each in subscription.transport.list_publishers(subscription.topic)}
    return gids.pop() if len(gids) == 1 else UNKNOWN
