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
        """Process a message in its subscription's callback; return whether the stop is active.

        If the transport does not identify publishers, the message is of the only publisher of the topic, or `UNKNOWN`.
        """
        who = None if subscription is None else subscription.publisher
        if who is None:
            found = () if subscription is None else subscription.transport.list_publishers(subscription.topic)
            gids = {each.gid for each in found}
            who = gids.pop() if len(gids) == 1 else UNKNOWN
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
