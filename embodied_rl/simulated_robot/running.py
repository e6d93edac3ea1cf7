"""Run `embodied-rl robot`: open the transport, print the topics, and run the main loop until a signal."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.environment import read_environment
from embodied_rl.deployment.transport.extras import require
from embodied_rl.deployment.transport.interface import Endpoint, Transport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode, SimulatorSpec
from embodied_rl.schema import RobotConfig
from embodied_rl.simulated_robot.factory import build_servoed_robot, find_servo_class
from embodied_rl.simulated_robot.filming import FilmedEpisode, FilmWatcher
from embodied_rl.simulated_robot.loop import run_in_lockstep, run_in_real_time
from embodied_rl.simulated_robot.node import SimulatedRobot, Watcher
from embodied_rl.simulated_robot.robot_check import check_fit
from embodied_rl.simulated_robot.settings import RobotSettings
from embodied_rl.system.signals import note_stop

NODE = "simulated_robot"
ALONE_S = 1.0
"""Seconds to wait for other publishers in the domain."""
TIMEOUT_S = 0.1
"""Default command timeout in seconds, if neither the command line nor the robot's description has one."""


def run_robot(config: RobotConfig) -> list[FilmedEpisode]:
    """Simulate the robot until Ctrl-C, SIGTERM, or its last episode; return the recorded videos.

    Raises:
        UserError: the simulator does not match the robot, or a ROS 2 variable is unsupported. Unavailable: the extra
            ros2 is missing.
    """
    description, settings = check_robot(config), _make_settings(config, load_robot(config.robot))
    film = FilmWatcher() if config.film is not None else None
    with ExitStack() as stack:
        ended = stack.enter_context(handle_signals())
        node = stack.enter_context(open_transport(config.transport, NODE))
        check_alone(node, description)
        robot = stack.enter_context(closing(_make(config, description, node, settings, film)))
        for line in describe_robot(config, description, robot):
            print(line, flush=True)
        robot.begin(choose_first(config, robot.robot.spec))
        over = lambda: ended() or (config.episodes is not None and robot.counts["episodes"] >= config.episodes)  # noqa: E731
        gc.freeze()  # what is there by now stays: a collection of it would be a pause
        (run_in_lockstep if config.lockstep else run_in_real_time)(robot, over)
    counts = robot.counts
    print(
        f"The robot has left: {counts['episodes']} episodes, {counts['commands']} commands, "
        f"{counts['refused']} refused, {robot.late_s:.2f} s too late."
    )
    return [] if film is None else list(film.episodes)


def check_robot(config: RobotConfig) -> RobotDescription:
    """Check the configuration without opening the transport; return the robot's description.

    Raises:
        UserError: see `run_robot`.
    """
    description = load_robot(config.robot)
    find_servo_class(config.sim)
    if config.transport == "dds":
        require("cyclonedds", "a simulated robot over transport=dds")
        read_environment()
    if config.lockstep and config.faults.command_delay:
        raise UserError(
            "faults.command_delay is for real time: in lockstep the robot waits for each command.", "keys-contradict"
        )
    if config.film is not None and config.film.suffix != ".mp4":
        raise UserError(f"film={config.film} must end in .mp4.", code="film-not-mp4")
    with closing(build_servoed_robot(config.sim)) as robot:
        check_fit(description, robot)
    return description


def check_alone(node: Transport, description: RobotDescription) -> None:
    """Check that the robot's topics have no other publisher, such as a second robot in the same domain.

    Raises:
        UserError: a topic has another publisher.
    """

    def find_others() -> list[Endpoint]:
        topics = [topic.name for topic in description.topics.values()]
        return [each for topic in topics for each in node.list_publishers(topic) if not each.own]

    if node.spin_until(lambda: bool(find_others()), ALONE_S):
        other = find_others()[0]
        raise UserError(
            f"{other.topic}: {other.node or 'another node'} publishes it already, and two robots would follow the "
            "same commands. End the other one, or set another ROS_DOMAIN_ID for this one.",
            code="topic-already-published",
        )


def choose_first(config: RobotConfig, spec: SimulatorSpec) -> Episode:
    """Return the first episode; its task and split are known to exist."""
    task = next(
        i for i, each in enumerate(spec.tasks) if config.task is None or config.task in (each.name, each.family)
    )
    return Episode(0, task, config.seed, split="train" if config.split == "eval" else config.split)


def describe_robot(config: RobotConfig, description: RobotDescription, robot: SimulatedRobot) -> list[str]:
    """Return lines that list the robot's topics."""
    how = "in lockstep" if config.lockstep else f"in real time, {1 / robot.robot.servo_s:g} steps a second"
    domain = f", domain {read_environment().domain}" if config.transport == "dds" else ""
    rows = [
        *(("publishes", *each) for each in robot.topics.published),
        *(("subscribes", *each) for each in robot.topics.subscribed),
    ]
    width = max(len(topic) for _, topic, _ in rows)
    lines = [f"  {what:<10} {topic:<{width}}  {kind}" for what, topic, kind in rows]
    return [
        f"The robot {description.name} is simulated {how}, over {config.transport}{domain}; Ctrl-C ends it.",
        *lines,
    ]


def _make(
    config: RobotConfig,
    description: RobotDescription,
    node: Transport,
    settings: RobotSettings,
    watcher: Watcher | None,
) -> SimulatedRobot:
    tell: Callable[[str], None] = lambda line: print(line, flush=True)  # noqa: E731
    return SimulatedRobot(build_servoed_robot(config.sim), description, node, settings, tell=tell, watcher=watcher)


def _make_settings(config: RobotConfig, description: RobotDescription) -> RobotSettings:
    timeouts = [topic.timeout_s for topic in description.command_topics.values() if topic.timeout_s]
    timeout = config.timeout or min(timeouts, default=TIMEOUT_S)
    return RobotSettings(config.lockstep, timeout, config.deadline, faults=config.faults)


@contextmanager
def handle_signals() -> Iterator[Callable[[], bool]]:
    """Handle SIGINT, SIGTERM and SIGHUP; yield a function that returns whether one came. Ignored ones stay ignored."""
    came = threading.Event()
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]

    def stop(number: int, _: object) -> None:
        note_stop(number)
        came.set()

    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
