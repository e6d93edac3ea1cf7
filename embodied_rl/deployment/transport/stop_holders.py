"""Who holds an emergency stop: several may press it on one topic, and nobody releases what another one pressed."""

from embodied_rl.deployment.transport.interface import Subscription
from embodied_rl.deployment.transport.qos import QoS

STOP_QOS = QoS("reliable", "transient_local", depth=100)
"""Requested of an emergency stop. With the depth of 1 of other latched topics a "true" that another publisher's "false"
follows would be lost before anybody reads it."""
UNKNOWN = b""
"""A publisher that the transport does not tell from others; what it pressed, nobody can release."""


class StopHolders:
    """The publishers that said true and have not said false since.

    One that leaves without a "false" holds it on: perhaps its cable was cut.
    """

    def __init__(self) -> None:
        self._holders: set[bytes] = set()

    def hear(self, subscription: Subscription | None, pressed: bool) -> bool:
        """Take a message within its subscription's callback; return whether anybody holds the stop now."""
        who = UNKNOWN if subscription is None else identify(subscription)
        if pressed:
            self._holders.add(who)
        elif who != UNKNOWN:
            self._holders.discard(who)
        return bool(self._holders)

    def explain(self, subscription: Subscription | None) -> str:
        """Return in words who holds it; empty: nobody does. Any thread may ask."""
        holders = self._holders.copy()
        if not holders or subscription is None:
            return ""
        topic = subscription.topic
        ends = subscription.transport.list_publishers(topic)
        nodes = {each.gid: each.node or "a node without a name" for each in ends}
        names = sorted({nodes.get(each, "a node that has gone") for each in holders})
        return f"{topic}: the emergency stop is pressed by {', '.join(names)}"


def identify(subscription: Subscription) -> bytes:
    """Return who published the message that a callback is given.

    Where the transport does not tell, it is the only publisher on the topic, or `UNKNOWN` where there are several.
    """
    if subscription.publisher is not None:
        return subscription.publisher
    ends = {each.gid for each in subscription.transport.list_publishers(subscription.topic)}
    return ends.pop() if len(ends) == 1 else UNKNOWN
