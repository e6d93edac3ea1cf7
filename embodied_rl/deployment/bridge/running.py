"""The bridge from its start to its end: checks first, then the loop, then the robot at rest."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from embodied_rl.deployment.bridge.announcing import Announcer, describe_fare
from embodied_rl.deployment.bridge.asking import AskerThread, ChunkAsker, DirectAsking
from embodied_rl.deployment.bridge.checks import (
    check_command_topics,
    check_pace,
    check_stop_topic,
    wait_for_topics,
    wait_until,
)
from embodied_rl.deployment.bridge.command_publisher import CommandPublisher
from embodied_rl.deployment.bridge.controller import Controller, Surroundings
from embodied_rl.deployment.bridge.episodes import EpisodeDesk
from embodied_rl.deployment.bridge.executor_settings import choose_settings
from embodied_rl.deployment.bridge.inbox import Inbox
from embodied_rl.deployment.bridge.lockstep import LockstepClock, LockstepLoop
from embodied_rl.deployment.bridge.motion_files import make_motions
from embodied_rl.deployment.bridge.motions import MotionDesk
from embodied_rl.deployment.bridge.operator_topics import OperatorListener
from embodied_rl.deployment.bridge.pacing import quiet_interpreter, read_seconds
from embodied_rl.deployment.bridge.parts import make_core_settings, make_source_clock, measure_latency, open_policy
from embodied_rl.deployment.bridge.realtime import ControlThread
from embodied_rl.deployment.bridge.recorder import end_recording, start_recording
from embodied_rl.deployment.bridge.reporting import STATUS_HZ, BridgeReporter, measure_load
from embodied_rl.deployment.bridge.signals import watch_signals
from embodied_rl.deployment.bridge.topic_watch import TopicWatch
from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import Mode, Tick
from embodied_rl.deployment.policy_server.client import PolicyClient
from embodied_rl.deployment.recording.bag_writer import check_new
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import UserError

LOOKING_S = 0.02
TOPICS_S = 0.5
"""Seconds between two looks at who is on the topics."""


def check_bridge(config: BridgeConfig) -> list[tuple[str, str]]:
    """Check what can be known without a robot and without a server; return what is told in a dry run.

    Raises:
        UserError: the robot's file or a setting is wrong.
    """
    robot = load_robot(config.robot)
    check_settings(config, robot)
    make_motions(config, robot)
    return [
        ("robot", f"{robot.name}: {robot.verified}"),
        ("commands", f"{', '.join(each.name for each in robot.command_topics.values())}, {robot.command_hz:g} Hz"),
    ]


def check_settings(config: BridgeConfig, robot: RobotDescription) -> None:
    """Check that settings fit together; raises `UserError`."""
    if config.policy is None:
        if not robot.operator.teleop or config.lockstep:
            raise UserError(
                f"policy is missing. Without one the operator drives, for which the file of {robot.name} must name "
                "operator.teleop, and lockstep=false. Give policy=ws://…, or correct that."
            )
    elif not config.policy.startswith(("ws://", "wss://")):
        raise UserError(
            f"policy={config.policy} is no address of a policy server. Start one, embodied-rl serve policy=…, and give "
            "its address, ws://…; or use embodied-rl deploy, which starts one."
        )
    if config.lockstep and config.dry_run:
        raise UserError("lockstep=true: the robot waits for commands, and dry_run=true gives none. Leave one out.")
    if config.episodes and not (robot.operator.reset and robot.operator.outcome):
        raise UserError(f"episodes=true: the file of {robot.name} names no operator.reset and operator.outcome.")
    if config.record is not None:
        check_new(Path(config.record))


def run_bridge(config: BridgeConfig) -> int:
    """Drive a robot until a signal; the robot comes to rest first. Returns the exit code.

    Raises:
        UserError: something does not fit; the robot has not moved. NoPolicyAnswer: the server does not answer.
    """
    robot = load_robot(config.robot)
    check_settings(config, robot)
    motions = make_motions(config, robot)
    with ExitStack() as stack:
        client = None if config.policy is None else stack.enter_context(closing(open_policy(config, robot)[0]))
        node = stack.enter_context(open_transport(config.transport, "policy_bridge"))
        bridge = Bridge(config, robot, node, client, motions=motions)
        bridge.prepare()  # nothing is commanded yet: signals end it at once
        recorder = None if config.record is None else start_recording(config, robot, node, bridge.reporter)
        if recorder is not None:
            stack.enter_context(recorder)
        announcer = stack.enter_context(Announcer())
        bridge.tell, bridge.add_line = announcer.note, announcer.add_line
        stopped = stack.enter_context(watch_signals())
        stack.enter_context(quiet_interpreter())
        bridge.run(stopped.is_set)
        print("The bridge has ended; the robot is at rest." if not config.dry_run else "The bridge has ended.")
        if recorder is not None:
            end_recording(recorder)
        for line in motions.close():
            announcer.add_line(line)
    return 0


class Bridge:
    """A robot, a policy, and what lies between them.

    Args:
        config: of the bridge. robot: its description.
        node: the transport; in real time it is given a thread of its own by `run`.
        client: the policy, checked; None: the operator drives.
        clock: seconds, monotonic, also while the machine is suspended; in lockstep there is another one.
        threads: the policy is asked in a thread of its own; in lockstep it is not.
        motions: returns and replays; None: there are none.
    """

    def __init__(
        self,
        config: BridgeConfig,
        robot: RobotDescription,
        node: Transport,
        client: PolicyClient | None,
        clock: Callable[[], float] = read_seconds,
        *,
        threads: bool = True,
        motions: MotionDesk | None = None,
    ) -> None:
        self.config, self.robot, self.node, self.client = config, robot, node, client
        self.motions = MotionDesk() if motions is None else motions
        self._lockstep = LockstepClock(robot.control_hz) if config.lockstep else None
        self._threads = threads and not config.lockstep
        clock = clock if self._lockstep is None else self._lockstep.read
        self.inbox = Inbox(node, robot, clock)
        self.desk = EpisodeDesk(node, robot.operator, config.instruction)
        self.operator = OperatorListener(node, robot, clock, timed=self._lockstep is None)
        self.reporter = BridgeReporter(node)
        self.publisher = None if config.dry_run else CommandPublisher(robot, node)
        source = (
            make_source_clock(self.inbox, robot, node.now) if self._lockstep is None else self._lockstep.read_source
        )
        self.core = DeploymentCore(clock, source)
        self._watch = None if self.publisher is None else TopicWatch(self.publisher, self.operator)
        self._said, self._due = "", 0.0
        self.tell: Callable[[str], None] = lambda _: None
        self.add_line: Callable[[str], None] = lambda _: None
        """Takes in words how the robot fares, at each status; it must not wait."""
        self.controller: Controller | None = None
        self.asker: ChunkAsker | None = None
        self.control: ControlThread | None = None
        self.ticks = 0
        self._loop: LockstepLoop | None = None

    def prepare(self) -> None:
        """Check everything, and measure the policy's latency; nothing is commanded.

        Raises:
            UserError: something does not fit; one line with the remedy.
        """
        config, patience = self.config, self.config.patience
        wait_for_topics(self.node, self.robot, self.inbox, patience)
        check_pace(self.node, self.robot, self.inbox, lockstep=config.lockstep, patience_s=patience)
        if self.publisher is not None:
            check_command_topics(self.node, self.publisher, patience)
        check_stop_topic(self.node, self.robot, self.operator.unheard)
        if stopped := self.operator.stopped:
            raise UserError(f"{stopped}. Release it there, then start the bridge.")
        if not wait_until(self.node, lambda: self.desk.words is not None, patience):
            topic = self.robot.operator.instruction or "the robot's file names no operator.instruction"
            raise UserError(f"Nobody has said the words of the task ({topic}). Say them: instruction=…")
        if self.client is None:
            self._configure(None)
            print(
                f"{self.robot.name} is driven by teleoperation alone: no policy.{self._describe_deadman()}", flush=True
            )
            return
        count = 1 if config.lockstep else config.requests
        latencies = measure_latency(self.client, self.inbox, self.desk.words or "", count)
        spec = self.client.spec
        assert spec is not None, "it was checked"
        settings = choose_settings(config, self.robot, spec, [] if config.lockstep else latencies)
        self._configure(settings)
        slowest = 1e3 * max(latencies)
        print(
            f"{self.robot.name} and {config.policy} fit. Of {len(latencies)} answers the slowest took {slowest:.0f} "
            f"ms; strategy={settings.strategy}, an inference every {settings.replan} control steps"
            f"{'; nothing is commanded (dry_run)' if config.dry_run else ''}.{self._describe_deadman()}",
            flush=True,
        )

    def _describe_deadman(self) -> str:
        """Say what the robot waits for before it moves, where it has a dead man's switch that must be held."""
        operator, settings = self.robot.operator, make_core_settings(self.robot, self.config, self.inbox)
        if settings.deadman_s is None:
            return ""
        held = f"true on {operator.deadman}" if operator.deadman else f"button {operator.device.deadman}"
        without = "; deadman=false leaves it out for this simulated robot" if operator.reset else ""
        return f" It moves while the dead man's switch is held ({held}{without})."

    def _configure(self, settings: Settings | None) -> None:
        config, asking = self.config, None
        self.core.configure(make_core_settings(self.robot, config, self.inbox), settings)
        if self.client is not None and settings is not None:
            if not config.lockstep:
                self.client.deadline = settings.longest_wait / settings.control_hz  # later it is of no use
            self.asker = ChunkAsker(self.client, settings.strategy, config.seed, time.monotonic)
            asking = AskerThread(self.asker) if self._threads else DirectAsking(self.asker)
        around = Surroundings(self.inbox, self.operator, self.desk, asking, self.node.now, self.motions)
        self.controller = Controller(self.robot, self.core, around, episodic=config.episodes)

    def run(self, stopped: Callable[[], bool]) -> None:
        """Run the loop until `stopped()`, then bring the robot to rest.

        Raises:
            RunFailed: in lockstep, the robot does not answer.
        """
        limit = None if self.config.seconds is None else time.monotonic() + self.config.seconds
        over = lambda: stopped() or (limit is not None and time.monotonic() >= limit)  # noqa: E731
        (self._run_lockstep if self._lockstep is not None else self._run_in_real_time)(over)

    def _run_lockstep(self, over: Callable[[], bool]) -> None:
        while not over():
            self.step_in_lockstep()

    def step_in_lockstep(self) -> None:
        """Wait a moment for the robot's next observation, answer it, and report; raises `RunFailed`, see `run`."""
        if self._loop is None:
            controller, clock = self.controller, self._lockstep
            assert controller is not None and clock is not None, "it was prepared"
            self._loop = LockstepLoop(controller, self.inbox, clock, self.publish, self.config.patience)
        self._loop.step(self.node)
        self.ticks = self._loop.ticks
        self.report()

    def _run_in_real_time(self, over: Callable[[], bool]) -> None:
        controller = self.controller
        assert controller is not None, "it was prepared"
        asking = controller.around.asking
        self.node.start()
        self.control = control = ControlThread(
            controller, self.inbox, self.publish, 1 / self.robot.command_hz, priority=self.config.priority
        )
        control.start()
        looked = time.monotonic()
        try:
            while not over() and control.runs and not (self.node.failure or getattr(asking, "failure", None)):
                time.sleep(LOOKING_S)
                self.ticks = control.ticks
                self.report()
                if time.monotonic() - looked >= TOPICS_S:
                    looked = time.monotonic()
                    self.look_at_topics()
        finally:
            control.stop()
        self.report(at_once=True)
        if isinstance(asking, AskerThread):
            asking.close()
        for failure in (control.failure, self.node.failure, getattr(asking, "failure", None)):
            if failure is not None:
                raise failure

    def publish(self, made: Tick) -> None:
        """Publish the command of a tick; in a dry run nothing."""
        if self.publisher is not None:
            self.publisher.publish(made)

    def report(self, *, at_once: bool = False) -> None:
        """Publish the control steps that have ended, and ten times a second, or where something changed, the status."""
        assert self.controller is not None, "it was prepared"
        for step, context in self.controller.take_ended():
            if not self.config.dry_run:
                self.reporter.publish_step(step, context)
        for line in self.motions.settle():
            self.add_line(line)
        said = f"{self.core.state} {self.core.mode} {self.controller.episode} {self.controller.waiting}"
        now = time.monotonic()
        if at_once or said != self._said or now >= self._due:
            self._said, self._due = said, now + 1 / STATUS_HZ
            status = self.describe()
            self.reporter.publish_status(status)
            self.tell(describe_fare(status))

    def describe(self) -> dict[str, Any]:
        """Return the status."""
        controller, asker, control = self.controller, self.asker, self.control
        assert controller is not None, "it was prepared"
        status = self.core.status().as_dict()
        said = status["said"] if self.core.mode == Mode.HOLD else ""
        stopped = self.operator.stopped
        whys = (
            "" if self._watch is None else self._watch.why,
            status["blocked"] or status["why"] or controller.tick_why,
            said,
            stopped and f"{stopped}, and released there; where that node has gone, start the bridge anew",
            self.motions.refused if self.core.mode == Mode.HOLD else "",
            controller.policy_why,
            controller.why,
            controller.unread,
        )
        latency = {} if asker is None else {"inference": asker.seconds.summarise()}
        if control is not None:
            latency |= {
                "wake-up": control.pacer.lateness.summarise(),
                "tick": control.work.summarise(),
                "observation to command": control.age.summarise(),
            }
        return {
            **status,
            "why": "; ".join(dict.fromkeys(str(each) for each in whys if each)),
            "robot": self.robot.name,
            "policy": self.config.policy,
            "dry_run": self.config.dry_run,
            "lockstep": self.config.lockstep,
            "waiting": controller.waiting,
            "episode": controller.episode,
            "ticks": self.ticks,
            "missed_deadlines": 0 if control is None else control.pacer.missed,
            "motions": self.motions.describe(),
            "latency": latency,
            "counters": {name: getattr(asker, name, 0) for name in ("asked", "answered", "failed")},
            "last_refused_chunk": controller.refused,
            "reports_unsent": self.reporter.unsent,
            "last_unsent_report": self.reporter.last_unsent,
            "priority": "" if control is None else control.priority,
            "load": measure_load(),
            "pid": os.getpid(),
        }

    def look_at_topics(self) -> None:
        """Let the robot hold while somebody else commands it, or an emergency stop is there that is not heard."""
        assert self.controller is not None, "it was prepared"
        if self._watch is not None:
            self._watch.look(self.controller)
