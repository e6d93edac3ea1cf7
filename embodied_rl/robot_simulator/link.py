"""Connection to a robot: its topics, the controller and the control loop, in lockstep or in real time."""

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from embodied_rl.deployment.bridge.bridge_factory import make_core_settings, make_source_clock
from embodied_rl.deployment.bridge.checks import (
    check_clock,
    check_command_topics,
    check_stop_topic,
    wait_for_topics,
)
from embodied_rl.deployment.bridge.control_loop import ControlThread, LockstepClock, LockstepLoop
from embodied_rl.deployment.bridge.controller import Controller, ControllerInputs
from embodied_rl.deployment.bridge.inference import InferenceRequest, InferenceResult
from embodied_rl.deployment.bridge.latest_messages import LatestMessages
from embodied_rl.deployment.bridge.operator_topics import FIXED_NS, EpisodeTracker, RequestedEpisode
from embodied_rl.deployment.bridge.pacing import read_seconds
from embodied_rl.deployment.bridge.reporting import NO_EPISODE, STATUS_HZ, BridgeReporter, StepContext
from embodied_rl.deployment.configuration import BridgeConfig
from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.control.modes import MOVING
from embodied_rl.deployment.execution.messages import Chunk, Reason
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import ExecutedStep, Mode, Motion, State, Tick
from embodied_rl.deployment.robots.commands import CommandPublisher
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.sim import Array, Source
from embodied_rl.robot_simulator.episode_control import EpisodeOperator
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig

LOOKING_S = 0.002
EndedStep = tuple[ExecutedStep, StepContext]


class OfferedChunks:
    """Answers the controller's questions with what is offered; an `InferenceBackend` of the bridge.

    A chunk answers questions until the robot has done something: one that was forgotten before it began, such as by a
    watchdog, is given again; one that began, or that a human overtook, never. The caller and the control loop may be
    two threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._request: InferenceRequest | None = None
        self._offered: Array | None = None
        self.list_ended: Callable[[], Sequence[EndedStep]] = tuple
        """Returns the control steps that have ended, and that `take` was not asked for."""

    def offer(self, actions: Array | None) -> None:
        """Offer a chunk, float32 [H, A], chosen for what the robot observes now; None: none any more."""
        with self._lock:
            self._offered = actions

    def take(self, take_ended: Callable[[], list[EndedStep]]) -> list[EndedStep]:
        """Take the control steps that have ended; with one in which the robot did something the offer is over."""
        with self._lock:
            found = take_ended()
            self._end_offer(found)
        return found

    def submit(self, request: InferenceRequest) -> None:
        with self._lock:
            self._request = request

    def take_results(self) -> list[InferenceResult]:
        with self._lock:
            self._end_offer(self.list_ended())
            if self._request is None or self._offered is None:
                return []
            request, self._request = self._request.request, None
            return [InferenceResult(Chunk(request.sequence, request.epoch, request.step, self._offered, 0))]

    def _end_offer(self, ended: Sequence[EndedStep]) -> None:
        if any(step.source != Source.HOLD for step, _ in ended):
            self._offered = None


class RobotLink(ABC):
    """A robot and its controller, which executes chunks of a caller.

    Attributes:
        clock: seconds, the core's. episodes: requested ones. commanded: ticks in which the robot was to move.
    """

    def __init__(
        self, config: RobotSimulatorConfig, robot: RobotDescription, node: Transport, clock: Callable[[], float]
    ) -> None:
        self.config, self.robot, self.node, self.clock = config, robot, node, clock
        self.bridge = BridgeConfig(config.robot, "", lockstep=config.lockstep, deadman=config.deadman)
        self.latest = LatestMessages(node, robot, clock)
        self.episodes = EpisodeTracker(node, robot.operator, None)
        self.operator = EpisodeOperator(node, robot, clock, timed=not config.lockstep)
        self.chunks = OfferedChunks()
        self.horizon = self.commanded = self._attended = 0
        self._executed: Counter[Source] = Counter()
        self.controller: Controller | None = None
        self._publisher = CommandPublisher(robot, node)
        self._reporter, self._status_due = BridgeReporter(node), 0.0

    def check(self) -> None:
        """Wait for the robot, and check that it matches its description.

        Raises:
            UserError: it is missing, or another node commands it.
        """
        timeout_s = self.config.patience
        wait_for_topics(self.node, self.robot, self.latest, timeout_s)
        check_clock(self.node, self.robot, self.latest, lockstep=self.config.lockstep, timeout_s=timeout_s)
        check_command_topics(self.node, self._publisher, timeout_s)
        check_stop_topic(self.node, self.robot, self.operator.estop_fault)

    def prepare(self, horizon: int) -> None:
        """Prepare for chunks of `horizon` actions. Called between episodes, when the number changes."""
        self.rest()
        core = DeploymentCore(self.clock, self._find_source())
        low, high = (np.array(limit, np.float32) for limit in (self.robot.body.action_low, self.robot.body.action_high))
        jump = None if self.robot.jump is None else np.array(self.robot.jump, np.float32)
        policy = Settings(horizon, low, high, "stop", horizon, 0, self.robot.control_hz, jump=jump)
        core.configure(make_core_settings(self.robot, self.bridge, self.latest), policy)
        inputs = ControllerInputs(self.latest, self.operator, self.episodes, self.chunks, self.node.now)
        self.horizon, self.controller = horizon, Controller(self.robot, core, inputs, episodic=True)
        self.chunks.list_ended = lambda: self.controller.ended[:] if self.controller is not None else ()
        self._start(self.controller)

    def count_refused(self) -> int:
        """Return how many chunks were refused for their contents."""
        if self.controller is None:
            return 0
        refused, late = self.controller.core.status().refused, (Reason.EPOCH, Reason.SEQUENCE, Reason.STEP)
        return sum(count for reason, count in refused.items() if reason not in late)

    def follow(self, motion: Motion) -> str:
        """Execute a motion behind the safety filter; return how it ended.

        The caller must have the operator's consent. The dead man's switch must be held, if the robot has one.
        Afterwards the robot holds until a new episode or a mode request.

        Raises:
            RunFailed: the robot does nothing for `patience` seconds.
        """
        controller = self.controller
        assert controller is not None, "it was prepared"
        self._wait_for(lambda: not controller.has_new_episode() and controller.core.state == State.ACTIVE, motion)
        controller.hold()
        self._wait_for(lambda: controller.core.mode == Mode.HOLD, motion)
        controller.core.plan(motion)
        begun = f"{Mode.HOLD} to {motion.mode}"
        before = controller.core.status().counts.get(begun, 0)
        self.operator.request_mode(motion.mode)
        self._wait_for(lambda: controller.core.status().counts.get(begun, 0) > before, motion)
        self._wait_for(lambda: controller.core.mode != motion.mode, motion)
        return controller.core.status().why

    def _wait_for(self, condition: Callable[[], bool], motion: Motion) -> None:
        commanded, until = self.commanded, time.monotonic() + self.config.patience
        while not condition():
            self.advance()
            self.take_steps(NO_EPISODE)
            if self.commanded != commanded:
                commanded, until = self.commanded, time.monotonic() + self.config.patience
            if time.monotonic() > until:
                raise RunFailed(
                    f"The robot does not begin to {motion.words}: {self.explain() or 'it does not say why'}."
                )

    def begin_attended(self, index: int, words: str) -> None:
        """Begin an episode without a request on a topic."""
        self._attended += 1  # an earlier time than any message has, so that clocks of other machines do not matter
        self.episodes.instruction, self.episodes.instruction_ns = words, FIXED_NS
        self.episodes.requested = RequestedEpisode(index, self._attended)

    def take_steps(self, episode: int) -> list[ExecutedStep]:
        """Return the control steps of an episode that have ended since the last call; all are published."""
        found = [] if self.controller is None else self.chunks.take(self.controller.take_ended)
        for step, context in found:
            self._reporter.publish_step(step, context)
            self._executed[step.source] += 1
        return [step for step, context in found if context.episode == episode]

    def take_counts(self) -> Counter[Source]:
        """Return how many control steps each source executed since the last call, of those that were taken."""
        counts, self._executed = self._executed, Counter()
        return counts

    def explain(self) -> str:
        """Return why the robot does nothing; empty if unknown."""
        if self.controller is None:
            return ""
        status = self.controller.core.status()
        stopped = self.operator.stopped
        told = (self.controller.refused, self.controller.why, self.controller.unread)
        whys = (status.blocked or status.why, status.said, stopped, *told)
        return "; ".join(dict.fromkeys(each for each in whys if each))

    def publish(self, made: Tick) -> None:
        """Publish a tick's command."""
        self.commanded += made.mode in MOVING
        self._publisher.publish(made)

    def report(self) -> None:
        """Publish the status if it is due."""
        if self.controller is None or time.monotonic() < self._status_due:
            return
        self._status_due = time.monotonic() + 1 / STATUS_HZ
        said = {"robot": self.robot.name, "policy": "sim=robot", "waiting": self.controller.waiting}
        self._reporter.publish_status(self.controller.core.status().as_dict() | said)

    @abstractmethod
    def advance(self) -> None:
        """Run the control loop once, or wait shortly. Raises `RunFailed` if the loop has ended."""

    @abstractmethod
    def listen(self) -> None:
        """Receive messages without publishing commands."""

    @abstractmethod
    def is_settled(self, since_s: float) -> bool:
        """Return whether what is observed now was measured after the last command; `since_s`: when it was given."""

    @abstractmethod
    def is_observed(self, floor_ns: int) -> bool:
        """Return whether everything that an observation needs was published after this time."""

    @abstractmethod
    def rest(self) -> None:
        """Bring the robot to rest, and give no more commands."""

    def close(self) -> None:
        """Bring the robot to rest, and close the transport."""
        try:
            self.rest()
        finally:
            self.node.close()

    @abstractmethod
    def _start(self, controller: Controller) -> None: ...

    @abstractmethod
    def _find_source(self) -> Callable[[], int] | None: ...


class LockstepLink(RobotLink):
    """A link to a simulated robot that waits for each command.

    Attributes:
        before_step: called before each control step, such as for a scripted human.
    """

    def __init__(
        self,
        config: RobotSimulatorConfig,
        robot: RobotDescription,
        node: Transport,
        spin_robot: Callable[[], object] | None = None,
    ) -> None:
        self._steps = LockstepClock(robot.control_hz)
        self._spin_robot: Callable[[], object] = spin_robot or (lambda: None)
        self.before_step: Callable[[], object] = lambda: None
        self._loop: LockstepLoop | None = None
        self._answered: int | None = None
        """Stamp of the observation of the last command."""
        super().__init__(config, robot, node, self._steps.read)

    def advance(self) -> None:
        self._spin_robot()
        assert self._loop is not None, "it was prepared"
        self.before_step()
        self._loop.step(self.node)
        self.report()

    def publish(self, made: Tick) -> None:
        self._answered = self._steps.stamp
        super().publish(made)

    def listen(self) -> None:
        self._spin_robot()
        self.node.spin_once(LOOKING_S)

    def is_settled(self, since_s: float) -> bool:
        floor = 0 if self.controller is None else self.controller.find_min_source_ns()
        return self.latest.find_common_stamp(self._answered, floor) is not None

    def is_observed(self, floor_ns: int) -> bool:
        return self.latest.find_common_stamp(None, floor_ns) is not None

    def rest(self) -> None:
        if self.controller is not None and self.controller.core.state == State.ACTIVE:
            self.controller.core.deactivate(at_once=True)  # time stands still until the next command

    def _start(self, controller: Controller) -> None:
        self._loop = LockstepLoop(controller, self.latest, self._steps, self.publish, self.config.patience)

    def _find_source(self) -> Callable[[], int] | None:
        return self._steps.read_source


class RealTimeLink(RobotLink):
    """A link to a robot in real time; the robot holds while the caller computes."""

    def __init__(self, config: RobotSimulatorConfig, robot: RobotDescription, node: Transport) -> None:
        super().__init__(config, robot, node, read_seconds)
        self._control: ControlThread | None = None

    def check(self) -> None:
        super().check()
        self.node.start()

    def advance(self) -> None:
        time.sleep(LOOKING_S)
        for failure in (self.node.failure, None if self._control is None else self._control.failure):
            if failure is not None:
                raise failure
        if self._control is not None and not self._control.runs:
            raise RunFailed("The control loop has ended.")
        self.report()

    def listen(self) -> None:
        self.advance()

    def is_settled(self, since_s: float) -> bool:
        return all(each.stream.received_s >= since_s for each in self.latest.newest.copy().values())

    def is_observed(self, floor_ns: int) -> bool:
        newest = self.latest.newest.copy()
        return len(newest) == len(self.latest.mapping.topics) and all(
            each.source_ns > floor_ns for each in newest.values()
        )

    def rest(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.stop()

    def _start(self, controller: Controller) -> None:
        period = 1 / self.robot.command_hz
        self._control = ControlThread(controller, self.latest, self.publish, period, priority=False)
        self._control.start()

    def _find_source(self) -> Callable[[], int] | None:
        return make_source_clock(self.latest, self.robot, self.node.now)
