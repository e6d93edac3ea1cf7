"""Publisher of a robot's commands."""

from embodied_rl.deployment.execution.tick import Tick
from embodied_rl.deployment.robots.commands import Command, CommandMapping
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import TransportError


class CommandPublisher:
    """Publishes the command of each tick on all command topics of a robot.

    Args:
        robot: its description. node: the transport.

    Attributes:
        publishers: by the topic's name in `robot.command_topics`.
    """

    def __init__(self, robot: RobotDescription, node: Transport) -> None:
        self._node = node
        self._mappings = {name: CommandMapping(robot, node.messages, name) for name in robot.command_topics}
        self.publishers = {
            name: node.create_publisher(topic.name, topic.type_name, topic.qos)
            for name, topic in robot.command_topics.items()
        }
        self._previous: Command | None = None

    def publish(self, made: Tick) -> None:
        """Publish the command of a tick, if it has one; after a failure on one topic the other topics are still sent.

        Raises:
            ValueError: a number is not finite; nothing was published.
            TransportError: a message could not be sent; the first error.
        """
        if made.command is None:
            return
        previous, stamp_ns = None if made.restarted else self._previous, self._node.now()
        messages = {name: each.encode(made.command, previous, stamp_ns) for name, each in self._mappings.items()}
        self._previous = made.command
        failures: list[TransportError] = []
        for name, message in messages.items():
            try:
                self.publishers[name].publish(message)
            except TransportError as error:
                failures.append(error)
        if failures:
            raise failures[0]
