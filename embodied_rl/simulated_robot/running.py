"""Run `embodied-rl robot`: the transport, the main loops, in real time and in lockstep, and the film."""

import gc
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.environment import read_environment
from embodied_rl.deployment.transport.extras import require
from embodied_rl.deployment.transport.interface import Endpoint, Transport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import RobotOutcome
from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl.schema import RobotConfig
from embodied_rl.simulated_robot.checks import build_servoed_robot, check_fit, find_servo_class
from embodied_rl.simulated_robot.node import RobotSettings, SimulatedRobot, Watcher
from embodied_rl.system.signals import catch_stop_signals

NODE = "simulated_robot"
ALONE_S = 1.0
"""Seconds to wait for other publishers in the domain."""
TIMEOUT_S = 0.1
"""Default command timeout in seconds, if neither the command line nor the robot's description has one."""
MOST_BEHIND_S = 0.25
"""Largest delay in seconds that the real-time loop makes up for; a longer delay is dropped and reported."""
LOOKING_S = 0.1
"""Seconds between runs of slow tasks in lockstep."""
MOST_FILMED, LONGEST_FILM = 16, 2000
"""Episodes of a film, the last ones, and the pictures of each, the first ones."""


@dataclass
class FilmedEpisode:
    """The pictures of one episode, uint8 [height, width, 3], one a control step."""

    episode: Episode
    instruction: str
    pictures: list[Array] = field(default_factory=list)
    success: bool = False


class FilmWatcher(Watcher):
    """Keeps what the first camera saw in the last `episodes` that ended."""

    def __init__(self) -> None:
        self.episodes: deque[FilmedEpisode] = deque(maxlen=MOST_FILMED)
        self._running: FilmedEpisode | None = None

    def on_begin(self, episode: Episode, instruction: str) -> None:
        self._running = FilmedEpisode(episode, instruction)

    def on_picture(self, pictures: dict[str, Array]) -> None:
        if self._running is not None and len(self._running.pictures) < LONGEST_FILM:
            self._running.pictures.append(next(iter(pictures.values())))

    def on_end(self, episode: Episode, outcome: RobotOutcome) -> None:
        if self._running is not None:
            self._running.success = outcome.success
            self.episodes.append(self._running)
        self._running = None


def run_robot(config: RobotConfig) -> list[FilmedEpisode]:
    """Simulate the robot until Ctrl-C, SIGTERM, or its last episode; return the recorded videos.

    Raises:
        UserError: the simulator does not match the robot, or a ROS 2 variable is unsupported. Unavailable: the extra
            ros2 is missing.
    """
    description = check_robot(config)
    timeouts = [topic.timeout_s for topic in description.command_topics.values() if topic.timeout_s]
    timeout = config.timeout or min(timeouts, default=TIMEOUT_S)
    settings = RobotSettings(config.lockstep, timeout, config.deadline, faults=config.faults)
    tell: Callable[[str], None] = lambda line: print(line, flush=True)  # noqa: E731
    film = FilmWatcher() if config.film is not None else None
    with ExitStack() as stack:
        ended = stack.enter_context(catch_stop_signals()).is_set
        node = stack.enter_context(open_transport(config.transport, NODE))
        check_alone(node, description)
        servoed = build_servoed_robot(config.sim)
        robot = stack.enter_context(
            closing(SimulatedRobot(servoed, description, node, settings, tell=tell, watcher=film))
        )
        for line in describe_robot(config, description, robot):
            print(line, flush=True)
        tasks = enumerate(robot.robot.spec.tasks)
        first = next(number for number, task in tasks if config.task in (None, task.name, task.family))
        split = "train" if config.split == "eval" else config.split
        robot.begin(Episode(0, first, config.seed, split=split))
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


def describe_robot(config: RobotConfig, description: RobotDescription, robot: SimulatedRobot) -> list[str]:
    """Return lines that list the robot's topics."""
    how = "in lockstep" if config.lockstep else f"in real time, {1 / robot.robot.servo_s:g} steps a second"
    domain = f", domain {read_environment().domain}" if config.transport == "dds" else ""
    lines = [f"The robot {description.name} is simulated {how}, over {config.transport}{domain}; Ctrl-C ends it."]
    published, subscribed = robot.topics.published, robot.topics.subscribed
    width = max(len(topic) for topic, _ in (*published, *subscribed))
    for what, topics in (("publishes", published), ("subscribes", subscribed)):
        lines += [f"  {what:<10} {topic:<{width}}  {kind}" for topic, kind in topics]
    return lines


def _spin_for(robot: SimulatedRobot) -> Callable[[float], None]:
    """Return a function that spins the robot's node for a number of seconds, at least once."""

    def wait(seconds: float) -> None:
        robot.node.spin_once()
        robot.node.spin_until(lambda: False, seconds)

    return wait


def run_in_real_time(
    robot: SimulatedRobot,
    ended: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] | None = None,
) -> None:
    """Make the steps of the servo at absolute deadlines, until `ended()`.

    Args:
        ended: returns whether to stop; called before each step.
        clock: the robot's monotonic clock in seconds.
        wait: spins the robot's node for a number of seconds, possibly 0.
    """
    wait = wait or _spin_for(robot)
    period, due = robot.robot.servo_s, clock()
    while not ended():
        wait(0.0)  # also if late, so that received commands are processed in time
        robot.tick()
        due += period
        left = due - clock()
        if left < -MOST_BEHIND_S:
            robot.note_overrun(-left)
            due = clock()
        elif left > 0:
            wait(left)


def run_in_lockstep(
    robot: SimulatedRobot,
    ended: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] | None = None,
) -> None:
    """Answer commands until `ended()`; without commands, repeat the last answer. Arguments as in `run_in_real_time`."""
    wait = wait or _spin_for(robot)
    repeated = clock()
    while not ended():
        wait(LOOKING_S)
        robot.run_slow_tasks()
        now, waited = clock(), clock() - robot.progress_s
        if waited > robot.settings.deadline_s and robot.episode_requested:
            robot.give_up()
        elif min(waited, now - repeated) >= robot.settings.repeat_s:
            repeated = now
            robot.repeat()
