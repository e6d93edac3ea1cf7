"""Bridge between one robot and one policy."""

import os
import time
from collections.abc import Callable
from typing import Any

from embodied_rl.deployment.bridge.bridge_factory import (
    choose_settings,
    make_core_settings,
    make_source_clock,
    measure_latency,
)
from embodied_rl.deployment.bridge.checks import (
    TopicMonitor,
    check_clock,
    check_command_topics,
    check_stop_topic,
    wait_for_topics,
    wait_until,
)
from embodied_rl.deployment.bridge.control_loop import ControlThread, LockstepClock, LockstepLoop
from embodied_rl.deployment.bridge.controller import Controller, ControllerInputs
from embodied_rl.deployment.bridge.inference import AsyncInference, ChunkClient, SyncInference
from embodied_rl.deployment.bridge.latest_messages import LatestMessages
from embodied_rl.deployment.bridge.motions import MotionManager
from embodied_rl.deployment.bridge.operator_topics import EpisodeTracker, OperatorListener
from embodied_rl.deployment.bridge.pacing import read_seconds
from embodied_rl.deployment.bridge.reporting import STATUS_HZ, BridgeReporter, format_status_line
from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import Mode, Tick
from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.robots.commands import CommandPublisher
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import UserError

POLL_S = 0.02
TOPICS_S = 0.5
"""Seconds between two checks of the publishers on the topics."""


class Bridge:
    """Connects a robot with a policy.

    Args:
        node: in real time `run` starts its thread.
        client: of a policy that was checked; None: teleoperation alone.
        clock: seconds, monotonic, also while the machine is suspended; not used in lockstep.
        threads: run inference in a separate thread; never in lockstep.

    Attributes:
        print_status: takes the status line at each status; must not block. print_line: takes any other line.
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
        motions: MotionManager | None = None,
    ) -> None:
        self.config, self.robot, self.node, self.client = config, robot, node, client
        self.motions = MotionManager() if motions is None else motions
        self._lockstep = LockstepClock(robot.control_hz) if config.lockstep else None
        self._threads = threads and not config.lockstep
        clock = clock if self._lockstep is None else self._lockstep.read
        self.latest = LatestMessages(node, robot, clock)
        self.episodes = EpisodeTracker(node, robot.operator, config.instruction)
        self.operator = OperatorListener(node, robot, clock, timed=self._lockstep is None)
        self.reporter = BridgeReporter(node)
        self.publisher = None if config.dry_run else CommandPublisher(robot, node)
        self.core = DeploymentCore(
            clock,
            make_source_clock(self.latest, robot, node.now) if self._lockstep is None else self._lockstep.read_source,
        )
        self._monitor = None if self.publisher is None else TopicMonitor(self.publisher, self.operator)
        self._last_state, self._due = "", 0.0
        self.print_status: Callable[[str], None] = lambda _: None
        self.print_line: Callable[[str], None] = lambda _: None
        self.controller: Controller | None = None
        self.chunk_client: ChunkClient | None = None
        self.control: ControlThread | None = None
        self.ticks = 0
        self._loop: LockstepLoop | None = None

    def prepare(self) -> None:
        """Check everything, and measure the policy's latency, without commands; raises UserError with the remedy."""
        config, timeout_s = self.config, self.config.patience
        wait_for_topics(self.node, self.robot, self.latest, timeout_s)
        check_clock(self.node, self.robot, self.latest, lockstep=config.lockstep, timeout_s=timeout_s)
        if self.publisher is not None:
            check_command_topics(self.node, self.publisher, timeout_s)
        check_stop_topic(self.node, self.robot, self.operator.estop_fault)
        if stopped := self.operator.stopped:
            raise UserError(f"{stopped}. Release it there, then start the bridge.", code="estop-pressed")
        if not wait_until(self.node, lambda: self.episodes.instruction is not None, timeout_s):
            topic = self.robot.operator.instruction or "the robot's file has no operator.instruction"
            raise UserError(f"No task instruction received ({topic}). Set instruction=…", code="instruction-missing")
        if self.client is None:
            self._configure(None)
            text = f"{self.robot.name} is driven by teleoperation alone, without a policy."
            print(text + self._describe_deadman(), flush=True)
            return
        count = 1 if config.lockstep else config.requests
        latencies = measure_latency(self.client, self.latest, self.episodes.instruction or "", count)
        spec = self.client.spec
        assert spec is not None, "it was checked"
        settings = choose_settings(config, self.robot, spec, [] if config.lockstep else latencies)
        self._configure(settings)
        print(
            f"{self.robot.name} and {config.policy} fit. The slowest of {len(latencies)} answers took "
            f"{1e3 * max(latencies):.0f} ms; strategy={settings.strategy}, an inference every {settings.replan} "
            f"control steps{'; nothing is commanded (dry_run)' if config.dry_run else ''}.{self._describe_deadman()}",
            flush=True,
        )

    def _describe_deadman(self) -> str:
        operator, settings = self.robot.operator, make_core_settings(self.robot, self.config, self.latest)
        if settings.deadman_s is None:
            return ""
        held = f"true on {operator.deadman}" if operator.deadman else f"button {operator.device.deadman}"
        without = "; deadman=false removes it for this simulated robot" if operator.reset else ""
        return f" It moves while the dead man's switch is held ({held}{without})."

    def _configure(self, settings: Settings | None) -> None:
        config, inference = self.config, None
        self.core.configure(make_core_settings(self.robot, config, self.latest), settings)
        if self.client is not None and settings is not None:
            if not config.lockstep:
                self.client.deadline = settings.longest_wait / settings.control_hz  # later answers are useless
            self.chunk_client = ChunkClient(self.client, settings.strategy, config.seed)
            inference = (AsyncInference if self._threads else SyncInference)(self.chunk_client)
        inputs = ControllerInputs(self.latest, self.operator, self.episodes, inference, self.node.now, self.motions)
        self.controller = Controller(self.robot, self.core, inputs, episodic=config.episodes)

    def run(self, stopped: Callable[[], bool]) -> None:
        """Run the loop until `stopped()`, then bring the robot to rest; raises RunFailed: no answer in lockstep."""
        limit = None if self.config.seconds is None else time.monotonic() + self.config.seconds
        over = lambda: stopped() or (limit is not None and time.monotonic() >= limit)  # noqa: E731
        if self._lockstep is not None:
            while not over():
                self.step_in_lockstep()
            return
        controller = self.controller
        assert controller is not None, "it was prepared"
        inference = controller.inputs.inference
        self.node.start()
        self.control = control = ControlThread(
            controller, self.latest, self.publish, 1 / self.robot.command_hz, priority=self.config.priority
        )
        control.start()
        checked = time.monotonic()
        try:
            while not over() and control.runs and not (self.node.failure or getattr(inference, "failure", None)):
                time.sleep(POLL_S)
                self.ticks = control.ticks
                self.report()
                if time.monotonic() - checked >= TOPICS_S:
                    checked = time.monotonic()
                    self.check_topics()
        finally:
            control.stop()
        self.report(at_once=True)
        if isinstance(inference, AsyncInference):
            inference.close()
        for failure in (control.failure, self.node.failure, getattr(inference, "failure", None)):
            if failure is not None:
                raise failure

    def step_in_lockstep(self) -> None:
        """Wait briefly for the next observation, answer it, and report; raises `RunFailed`, see `run`."""
        if self._loop is None:
            controller, clock = self.controller, self._lockstep
            assert controller is not None and clock is not None, "it was prepared"
            self._loop = LockstepLoop(controller, self.latest, clock, self.publish, self.config.patience)
        self._loop.step(self.node)
        self.ticks = self._loop.ticks
        self.report()

    def publish(self, made: Tick) -> None:
        """Publish the command of a tick; in a dry run nothing."""
        if self.publisher is not None:
            self.publisher.publish(made)

    def report(self, *, at_once: bool = False) -> None:
        """Publish finished control steps, and the status at `STATUS_HZ` and after changes."""
        assert self.controller is not None, "it was prepared"
        for step, context in self.controller.take_ended():
            if not self.config.dry_run:
                self.reporter.publish_step(step, context)
        for line in self.motions.settle():
            self.print_line(line)
        controller, now = self.controller, time.monotonic()
        state = f"{self.core.state} {self.core.mode} {controller.episode_index} {controller.waiting}"
        if at_once or state != self._last_state or now >= self._due:
            self._last_state, self._due = state, now + 1 / STATUS_HZ
            status = self.describe()
            self.reporter.publish_status(status)
            self.print_status(format_status_line(status))

    def describe(self) -> dict[str, Any]:
        """Return the status."""
        controller, client, control = self.controller, self.chunk_client, self.control
        assert controller is not None, "it was prepared"
        status = self.core.status().as_dict()
        stopped = self.operator.stopped
        holds = self.core.mode == Mode.HOLD
        reasons = (
            "" if self._monitor is None else self._monitor.why,
            status["blocked"] or status["why"] or controller.tick_why,
            status["said"] if holds else "",
            stopped and f"{stopped}, and released there; if that node has gone, restart the bridge",
            self.motions.refused if holds else "",
            controller.policy_why,
            controller.why,
            controller.unread,
        )
        latency = {} if client is None else {"inference": client.seconds.summarise()}
        if control is not None:
            latency |= {
                "wake-up": control.pacer.lateness.summarise(),
                "tick": control.work.summarise(),
                "observation to command": control.age.summarise(),
            }
        return {
            **status,
            "why": "; ".join(dict.fromkeys(str(each) for each in reasons if each)),
            "robot": self.robot.name,
            "policy": self.config.policy,
            "dry_run": self.config.dry_run,
            "lockstep": self.config.lockstep,
            "waiting": controller.waiting,
            "episode": controller.episode_index,
            "ticks": self.ticks,
            "missed_deadlines": 0 if control is None else control.pacer.missed,
            "motions": self.motions.describe(),
            "latency": latency,
            "counters": {name: getattr(client, name, 0) for name in ("asked", "answered", "failed")},
            "last_refused_chunk": controller.refused,
            "reports_unsent": self.reporter.unsent,
            "last_unsent_report": self.reporter.last_unsent,
            "priority": "" if control is None else control.priority,
            "load": [round(each, 2) for each in os.getloadavg()],  # over 1, 5 and 15 minutes
            "pid": os.getpid(),
        }

    def check_topics(self) -> None:
        """Enter HOLD if another node publishes commands, or if an e-stop publisher is not received."""
        assert self.controller is not None, "it was prepared"
        if self._monitor is not None:
            self._monitor.check(self.controller)
