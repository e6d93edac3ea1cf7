"""Controller of the bridge: passes messages to the core, requests chunks from the policy and returns commands.

The control loop calls `Controller.tick`: in real time in its own thread, in lockstep once per observation. It never
blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from embodied_rl.deployment.bridge.inference import InferenceBackend, InferenceRequest
from embodied_rl.deployment.bridge.latest_messages import LatestMessages
from embodied_rl.deployment.bridge.motions import MotionManager
from embodied_rl.deployment.bridge.operator_topics import EpisodeTracker, OperatorListener, RequestedEpisode
from embodied_rl.deployment.bridge.reporting import NO_EPISODE, StepContext
from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.control.modes import MOVING
from embodied_rl.deployment.execution.tick import ExecutedStep, Mode, State, Tick
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fields import UnusableMessageError
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source

SILENT_S = 1.0
"""Seconds without state messages after which the robot may have moved, such as after a restart of its driver."""


@dataclass(frozen=True)
class ControllerInputs:
    """Inputs of a controller: without `inference` teleoperation alone; `now_ns` is the clock of message stamps."""

    latest: LatestMessages
    operator: OperatorListener
    episodes: EpisodeTracker
    inference: InferenceBackend | None
    now_ns: Callable[[], int]
    motions: MotionManager = field(default_factory=MotionManager)


class Controller:
    """Controls a robot.

    Args:
        core: configured for the robot.
        episodic: active within episodes only, from the request to the outcome.

    Attributes:
        episode: the present or last episode; None before the first one.
        waiting: inactive until an episode is requested.
        pending: becomes active once all topics are fresh.
        why: the reason for being inactive. unread: the error of the newest messages.
        policy_why: the last error of the policy. tick_why: the reason for holding.
        ended: finished control steps that `take_ended` has not returned yet.
        refused: the error of the last refused chunk.
        motion_blocked_reason: any thread may set it; empty: motion is allowed.
    """

    def __init__(
        self, robot: RobotDescription, core: DeploymentCore, inputs: ControllerInputs, *, episodic: bool
    ) -> None:
        self.core, self.inputs = core, inputs
        self.episode: RequestedEpisode | None = None
        self.waiting, self.why, self.policy_why, self.refused = episodic, "", "", ""
        self.unread = self.tick_why = self.motion_blocked_reason = ""
        self.ended: list[tuple[ExecutedStep, StepContext]] = []
        self.pending, self._stopping = not episodic, False
        names = [entry.name for entry in robot.state]
        self._measured_indices = [names.index(entry.measured) if entry.measured else None for entry in robot.actions]
        self._topics = {name: robot.topics[name].name for name in inputs.latest.mapping.topics}
        self._command, self._measured = np.zeros(len(robot.actions)), np.full(len(robot.actions), np.nan)
        self._run_requested = self._alternates = self._was_silent = False
        self._resume_run = True
        self._decisions = self._number = 0
        self._context, self._label = StepContext(0, NO_EPISODE, 0, "", {}), ""

    @property
    def episode_index(self) -> int:
        """Index of the present episode; `NO_EPISODE` without one."""
        return NO_EPISODE if self.episode is None else self.episode.index

    @property
    def _instruction(self) -> str:
        return self.inputs.episodes.instruction or ""

    def tick(self) -> Tick | None:
        """Compute the next command; None while inactive."""
        self.update_episode()
        self._observe()
        if self.pending and not self._stopping:
            if self.core.mode == Mode.ESTOP:
                self._operate(Mode.ESTOP)  # reads the reset that an activation requires
            self._activate()
        self._release_command()
        if self.core.state != State.ACTIVE:
            return None
        self._request_run()
        self._operate(self.core.mode)
        self._exchange_with_policy()
        made = self.core.tick()
        if made.begins:
            newest = self.inputs.latest.newest.copy()
            observed = {self._topics[name]: each.source_ns for name, each in newest.items()}
            now_ns, number = self.inputs.now_ns(), self._number
            self._context = StepContext(now_ns, self.episode_index, number, self._instruction, observed)
            self._number += 1
        if made.ended is not None:
            self.ended.append((made.ended, replace(self._context, label=self._label)))
            self._label = ""
        self._command = self._command if made.command is None else made.command
        self.tick_why = made.why if made.source == Source.HOLD else ""
        return made

    def hold(self) -> None:
        """Enter HOLD until the operator requests another mode."""
        self._run_requested = False
        self.inputs.operator.request_mode(Mode.HOLD)

    def stop(self) -> bool:
        """Bring the robot to rest; return whether it is at rest and inactive. Call it until then."""
        self._stopping = True
        if self.core.state == State.ACTIVE:
            self.core.deactivate()
        return self.core.state != State.ACTIVE

    def take_ended(self) -> list[tuple[ExecutedStep, StepContext]]:
        """Return the control steps that have ended since the last call."""
        count = len(self.ended)
        found, self.ended[:count] = self.ended[:count], []
        return found

    def find_min_source_ns(self) -> int:
        """Return the time after which messages show the present episode, in ns of the transport."""
        return 0 if self.episode is None else self.inputs.episodes.find_min_source_ns(self.episode)

    def has_new_episode(self) -> bool:
        """Return whether an episode was requested that `update_episode` has not handled yet."""
        return self.inputs.episodes.requested != self.episode

    def update_episode(self) -> None:
        """Handle a requested episode, or the end of the present one."""
        episodes, motions = self.inputs.episodes, self.inputs.motions
        requested = episodes.requested
        if requested is not None and requested != self.episode:
            if self.core.state == State.ACTIVE:
                self.core.deactivate(at_once=True)
            self.core.forget_streams()
            motions.forget()  # the robot was moved to another place
            self.episode, self.pending, self.waiting = requested, True, False
            self._was_silent, self._resume_run = False, True
        elif requested is not None and not self.waiting and episodes.is_over(requested):
            self.pending, self.waiting, self.why = False, True, "the episode has ended"
            self.tick_why = ""
            motions.follow(Mode.HOLD, episodes.find_label(requested), self._instruction)
            if self.core.state == State.ACTIVE:
                self.core.deactivate(at_once=True)

    def _observe(self) -> None:
        """Pass the newest messages to the core; set what is measured, float64 [A], NaN for unmeasured entries."""
        latest, after_ns = self.inputs.latest, self.find_min_source_ns()
        newest = {name: each for name, each in latest.newest.copy().items() if each.source_ns > after_ns}
        measured, unread = np.full(len(self._measured_indices), np.nan), ""
        try:
            state = latest.mapping.read_state({name: each.message for name, each in newest.items()})
            measured = np.array([np.nan if index is None else state[index] for index in self._measured_indices])
        except UnusableMessageError as error:
            unread = str(error)
        self.unread = unread
        self.core.observe({name: each.stream for name, each in newest.items()}, measured)
        self._measured = measured

    def _activate(self) -> None:
        """Activate once all topics are fresh and newer than the episode request.

        After a silence, unmeasured entries such as a gripper start at their last command, so that it drops nothing.
        """
        episodes = self.inputs.episodes
        if episodes.instruction is None or episodes.instruction_ns < self.find_min_source_ns():
            self.why = "no task instruction received"
            return
        try:
            self.core.activate(self._measured, self._command if self._was_silent else None)
        except UserError as error:
            self.why = str(error)
            return
        self.pending, self.waiting, self.why, self.policy_why = False, False, "", ""
        if not self._was_silent:
            self._decisions = self._number = 0
        self.inputs.operator.request_mode(None)  # earlier requests do not count
        self._run_requested, self._alternates = self._resume_run and self.inputs.inference is not None, False
        self._operate(Mode.HOLD, old=True)
        if self._was_silent:
            self._run_requested &= not self._label  # labelled during the silence
        else:
            self._label = ""
        self._was_silent = False

    def _release_command(self) -> None:
        """Deactivate during a long silence of the robot; afterwards commands start at its new place.

        Otherwise a restarted driver would move the robot back to its old place, at an unknown speed.
        """
        if self._stopping or self.core.state != State.ACTIVE or not self.inputs.latest.is_silent(SILENT_S):
            return
        if not self._was_silent:
            self._was_silent, self._resume_run = True, self._run_requested or self.core.mode == Mode.RUN
        self.core.deactivate()
        self.pending = self.core.state != State.ACTIVE

    def _request_run(self) -> None:
        """Request RUN, in every second tick, until it was entered once, such as after the dead man's switch is held."""
        if not self._run_requested or self.motion_blocked_reason or self.core.mode == Mode.TELEOP:
            return
        if self.core.mode == Mode.RUN:
            self._run_requested = False
        else:
            self._alternates = not self._alternates
            self.inputs.operator.request_mode(Mode.RUN if self._alternates else None)

    def _operate(self, mode: Mode, *, old: bool = False) -> None:
        """Pass the operator's input to the core. A stop, hold, motion or label cancels the request for RUN.

        `old` input was given while inactive: it may make the robot hold, and never move.
        """
        operator, motions = self.inputs.operator, self.inputs.motions
        given = operator.read(mode, self._command)
        self._label = given.label or self._label
        if old:
            given = replace(given, wanted=Mode.HOLD if given.wanted == Mode.HOLD else None, label="", store=False)
        cancels = given.estop or given.label or given.wanted in (Mode.HOLD, Mode.RETURN, Mode.REPLAY)
        if self._run_requested and cancels:
            self._run_requested = False
            operator.request_mode(None)
        if self.motion_blocked_reason:
            if given.wanted is not None:
                operator.request_mode(None)  # an old request must not move it once motion is allowed again
            given = replace(given, wanted=Mode.HOLD if mode in MOVING else None)
        self.core.operate(motions.prepare(given, self.core, (self._measured, self._command), self._instruction))
        motions.follow(self.core.mode, given.label, self._instruction)

    def _exchange_with_policy(self) -> None:
        inference = self.inputs.inference
        if inference is None:
            return
        self._receive_chunks(inference)
        request = self.core.request()
        if request is not None:
            latest = self.inputs.latest
            observe = partial(latest.observe, latest.snapshot(), self._instruction)
            episode = None if self.episode is None else self.episode.index
            inference.submit(InferenceRequest(request, observe, episode, self._decisions))
            self._decisions += 1
            self._receive_chunks(inference)  # in lockstep the result is ready

    def _receive_chunks(self, inference: InferenceBackend) -> None:
        for result in inference.take_results():
            if result.chunk is None:
                self.policy_why = result.failure
                continue
            refusal = self.core.receive(result.chunk)
            self.policy_why, self.refused = "", self.refused if refusal is None else refusal.message
