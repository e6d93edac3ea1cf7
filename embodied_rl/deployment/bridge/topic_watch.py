"""Watches topics while a robot moves: somebody else who commands it, and an emergency stop that is not heard."""

from embodied_rl.deployment.bridge.checks import find_rivals
from embodied_rl.deployment.bridge.command_publisher import CommandPublisher
from embodied_rl.deployment.bridge.controller import Controller
from embodied_rl.deployment.bridge.operator_topics import OperatorListener
from embodied_rl.deployment.execution.tick import Mode


class TopicWatch:
    """Lets a robot hold while its topics are not as they were checked; afterwards it goes on when it is asked to.

    Args:
        commands: publishes them. operator: who hears the emergency stop.

    Attributes:
        why: in words, why the robot holds; empty: it does not hold because of this.
    """

    def __init__(self, commands: CommandPublisher, operator: OperatorListener) -> None:
        self._publishers, self._operator = tuple(commands.publishers.values()), operator
        self._over, self.why = "", ""

    def look(self, controller: Controller) -> None:
        """Look once, and bar the controller or let it go on."""
        found, before = self._find(), controller.barred
        controller.barred = found
        if found and not before:
            controller.hold()
        if found:
            self.why = f"{found}: hold until that ends and run is asked for"
        elif before:
            self.why = f"{self._over}: hold until run is asked for"
        elif controller.core.mode != Mode.HOLD:
            self.why = ""

    def _find(self) -> str:
        """Return in words what is wrong, empty for nothing; and remember what is said of it when it is over."""
        for publisher in self._publishers:
            if found := find_rivals(publisher):
                self._over = f"{publisher.topic}: somebody else gave commands"
                return found
        if found := self._operator.unheard:
            self._over = "an emergency stop was there that could not be heard"
        return found
