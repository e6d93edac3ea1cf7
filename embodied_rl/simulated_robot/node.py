"""The node of a simulated robot: execute commands and requests, advance time, publish measurements."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from embodied_rl.config.freeze import thaw_config
from embodied_rl.deployment.robots.commands import CommandMapping
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.transport.emergency_stop import EmergencyStopState
from embodied_rl.deployment.transport.interface import Callback, Transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import RobotOutcome, ServoedRobot
from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl.schema import FaultsNode
from embodied_rl.simulated_robot.checks import CommandCheck, check_fit
from embodied_rl.simulated_robot.drive import Drive
from embodied_rl.simulated_robot.faults import Pictures, SensorFaults, States
from embodied_rl.simulated_robot.requests import make_printable, read_episode, read_faults
from embodied_rl.simulated_robot.topics import FAULTS, RobotTopics

STATUS_S = 0.5
"""Seconds between two messages on /simulation/status without changes."""
REPORT_S = 1.0
"""Shortest time between two lines about a command timeout, in seconds."""


@dataclass(frozen=True)
class RobotSettings:
    """Settings of a simulated robot.

    Attributes:
        lockstep: each command makes one control step; time stands still until the next command.
        timeout_s: real time only: the robot stops after this time without a command.
        deadline_s: lockstep only: the episode fails after this time without a command.
        repeat_s: lockstep only: the last messages are published again after this time, for late subscribers.
        faults: faults at the start.
    """

    lockstep: bool = False
    timeout_s: float = 0.1
    deadline_s: float = 60.0
    repeat_s: float = 1.0
    faults: FaultsNode = field(default_factory=FaultsNode)


class Watcher:
    """Callbacks for the episodes of a simulated robot."""

    def on_begin(self, episode: Episode, instruction: str) -> None:
        """An episode began."""

    def on_picture(self, pictures: dict[str, Array]) -> None:
        """Images were taken; they are without faults."""

    def on_end(self, episode: Episode, outcome: RobotOutcome) -> None:
        """An episode ended."""


class SimulatedRobot:
    """A robot of a simulator as a node of ROS 2.

    In lockstep everything happens in the callbacks of `node`: a request or command is answered with states, images and
    then the clock, all with the same stamp. In real time `tick` makes one servo step.

    Args:
        node: the transport; only this object's loop spins it.
        clock: monotonic clock in seconds, for deadlines.
        tell: prints a line.

    Attributes:
        episode: the current episode; None before the first one, and after a restart of the node.
        counts: commands, refused (commands and requests), episodes, overruns.

    Raises:
        UserError: the simulated robot does not match the description, or its topics cannot be published.
    """

    def __init__(
        self,
        robot: ServoedRobot,
        description: RobotDescription,
        node: Transport,
        settings: RobotSettings,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda _: None,
        watcher: Watcher | None = None,
    ) -> None:
        check_fit(description, robot)
        self.robot, self.settings, self.node = robot, settings, node
        self.episode: Episode | None = None
        self.counts = {"commands": 0, "refused": 0, "episodes": 0, "overruns": 0}
        self.last_refusal = ""
        self.late_s = 0.0
        self._reported_silent, self._reported_s = False, -REPORT_S
        self.progress_s = clock()
        """Time of the last control step in lockstep, by the clock."""
        self._check = CommandCheck(description)
        self._command = np.full(len(description.actions), np.nan)
        """Entries received since the last complete command; NaN: not received yet."""
        self._drive = Drive(self._check, settings.timeout_s)
        self._clock, self._print, self._watcher = clock, tell, watcher or Watcher()
        self._control_ns = round(1e9 / description.control_hz)
        self._per_picture = max(1, round(1 / (description.control_hz * robot.servo_s)))
        self._stamp_ns, self._ticks = node.now(), 0
        self._last_status, self._status_s = "", -STATUS_S
        self._last_instruction: str | None = None
        self._outcome_published = self._was_requested = False
        self._reported_faults: set[str] = set()
        self._stop_name, self._holders = description.operator.estop, EmergencyStopState()
        self._gone_until: float | None = None
        self._restarted_ns = 0
        self._restart_s = 0.0
        callbacks: dict[str, Callback] = {
            topic.name: partial(self._on_command, CommandMapping(description, node.messages, name))
            for name, topic in description.command_topics.items()
        }
        operator = description.operator
        callbacks |= {operator.estop: self._on_stop, operator.reset: self._on_reset, FAULTS: self._on_faults}
        self.topics = RobotTopics(node, description, robot, callbacks, settings.lockstep)
        self._faults = SensorFaults(FaultsNode())
        self.set_faults(settings.faults)

    def begin(self, episode: Episode) -> None:
        """Begin an episode: reset the scene, with the robot at rest at its start.

        Raises:
            UserError: the task, split or initial state is unknown; nothing changes.
        """
        self.robot.begin(episode)
        self.episode, self._outcome_published, self._last_instruction = episode, False, None
        self._was_requested = self._reported_silent = False
        self._drive.begin()
        self._command[:] = np.nan
        self._watcher.on_begin(episode, self.robot.instruction)
        self._print(f"episode {episode.index}: {self.robot.instruction}")
        if self.settings.lockstep:
            self._advance()

    def set_faults(self, faults: FaultsNode) -> None:
        """Replace the active faults."""
        self._faults = SensorFaults(faults)
        self._drive.delay_s = faults.command_delay
        self._restart_s = faults.restart

    def _on_reset(self, message: Any, received_ns: int, source_ns: int) -> None:
        if source_ns <= self._restarted_ns:  # a latched request from before the restart, which ended its episode
            return
        try:
            self.begin(read_episode(message.data, self.robot.spec))
            self._was_requested = True
        except UserError as error:
            self._refuse(f"a request for an episode: {error}")

    def _on_faults(self, message: Any, received_ns: int, source_ns: int) -> None:
        try:
            self.set_faults(read_faults(message.data))
        except UserError as error:
            self._refuse(f"a request for faults: {error}")
            return
        self._print(f"faults: {make_printable(message.data)}")

    def _on_stop(self, message: Any, received_ns: int, source_ns: int) -> None:
        pressed = self._holders.update(self.topics.find_subscription(self._stop_name), bool(message.data))
        if pressed != self._drive.pressed:
            self._print(f"the emergency stop is {'pressed' if pressed else 'released'}")
        self._drive.press(pressed)
        self._publish_status()

    def _on_command(self, mapping: CommandMapping, message: Any, received_ns: int, source_ns: int) -> None:
        try:
            said = mapping.decode(message)
            self._check.check(said)
            command = np.where(np.isnan(said), self._command, said)
            if np.isnan(command).any():  # entries of another topic are missing
                self._command = command
                return
            self._command = np.full(len(command), np.nan)
            if self.settings.lockstep:
                self._drive.allow(command)
            else:
                self._drive.take(command, self._clock())
        except UserError as error:
            self._refuse(f"a command: {error}")
            return
        self.counts["commands"] += 1
        self._was_requested = True
        if self.settings.lockstep and self.episode is not None and self.robot.outcome is None:
            self.robot.control_step(self._check.find_action(command))
            self._advance()

    def _refuse(self, words: str) -> None:
        self.counts["refused"] += 1
        self.last_refusal = words = make_printable(words)
        if self.counts["refused"].bit_count() == 1:  # the 1st, 2nd, 4th …: limits the output
            self._print(f"refused {words} (refused so far: {self.counts['refused']})")
        self._publish_status()

    def tick(self) -> None:
        """Make one servo step in real time, and publish the messages that are due."""
        now = self._clock()
        self._drive.step(self.robot, now)
        silent = self._drive.silent
        if not self._drive.stopped and silent != self._reported_silent and now - self._reported_s >= REPORT_S:
            self._reported_silent, self._reported_s = silent, now
            self._print(f"{self._drive.why}: the robot stops by itself" if silent else "commands come again")
        self._ticks += 1
        self._stamp_ns = self.node.now()
        self.run_slow_tasks()
        if self.topics.is_open:
            self._publish(pictures=self._ticks % self._per_picture == 0)

    def _advance(self) -> None:
        """Publish the measurements after a control step in lockstep."""
        self._stamp_ns += self._control_ns
        self.progress_s = self._clock()
        if self.topics.is_open:
            self._publish(pictures=True)
            self._publish_status()

    def repeat(self) -> None:
        """Publish the last messages of lockstep again, with the same stamps."""
        if self.topics.is_open and self.episode is not None:
            self._publish(pictures=True, again=True)

    @property
    def episode_requested(self) -> bool:
        """Return whether the current episode was requested or commanded, and has not ended."""
        return self.episode is not None and self.robot.outcome is None and self._was_requested

    def note_overrun(self, seconds: float) -> None:
        """Record and print that the machine was too slow for real time."""
        self.counts["overruns"] += 1
        self.late_s += seconds
        if self.counts["overruns"].bit_count() == 1:
            self._print(f"this machine was {seconds:.2f} s late; the simulated robot stood still meanwhile")

    def give_up(self) -> None:
        """End the episode as a failure because no command arrives in lockstep."""
        assert self.episode is not None
        seconds = f"{self.settings.deadline_s:g}"
        self._print(f"episode {self.episode.index} is given up: no command for {seconds} s")
        self._end(RobotOutcome(False, f"no command for {seconds} s", True, 0, 0.0))
        self.episode = None

    def run_slow_tasks(self) -> None:
        """Run slow tasks: reconnect after a restart request; publish the status."""
        now = self._clock()
        if self._restart_s > 0:
            self._print(f"the node restarts, and is gone for {self._restart_s:g} s")
            self._gone_until, self._restart_s = now + self._restart_s, 0.0
            self._restarted_ns = self.node.now()
            self.topics.close()
            self._reported_silent = False
            self._drive.begin()
            self.episode, self._last_instruction = None, None
        if self._gone_until is not None and now >= self._gone_until:
            self._gone_until = None
            self.topics.open()
        if now - self._status_s >= STATUS_S:
            self._last_status = ""
            for words in (self.topics.find_fault(), self.topics.last_unsent):  # the middleware does not report them
                if words and words not in self._reported_faults:
                    self._reported_faults.add(words)
                    self._print(words)
        self._publish_status()

    def _publish(self, pictures: bool, again: bool = False) -> None:
        if self.robot.instruction != self._last_instruction:
            self._last_instruction = self.robot.instruction
            self.topics.send_instruction(self._last_instruction)
        stamp = self._faults.jump(self._stamp_ns)
        for states in self._faults.filter_states(States(stamp, self.robot.joint_names, self.robot.read())):
            self.topics.send_states(states)
        if pictures:
            taken = self.robot.take_pictures()
            if not again:
                self._watcher.on_picture(taken)
            for shown in self._faults.filter_images(Pictures(stamp, taken)):
                self.topics.send_pictures(shown)
        if self.episode is not None and self.robot.outcome is not None and not self._outcome_published:
            self._end(self.robot.outcome)
        self.topics.send_clock(stamp)

    def _end(self, outcome: RobotOutcome) -> None:
        assert self.episode is not None
        self._outcome_published = True
        self.counts["episodes"] += 1
        self._watcher.on_end(self.episode, outcome)
        self._print(f"episode {self.episode.index}: {'success' if outcome.success else outcome.failure}")
        if self.topics.is_open:
            self.topics.send_outcome({
                "index": self.episode.index, "success": outcome.success, "failure": outcome.failure,
                "truncated": outcome.truncated, "steps": outcome.steps, "reward": outcome.reward,
            })  # fmt: skip

    def _publish_status(self) -> None:
        """Publish the status if it changed apart from its counts."""
        episode, faults = None if self.episode is None else self.episode.index, thaw_config(self._faults.faults)
        said = json.dumps([self._drive.why, self.last_refusal, episode, faults])
        if said == self._last_status or not self.topics.is_open:
            return
        self._last_status, self._status_s = said, self._clock()
        self.topics.send_status({
            "mode": "lockstep" if self.settings.lockstep else "real time", "episode": episode, "why": self._drive.why,
            "last_refusal": self.last_refusal, "late_s": self.late_s, **self.counts, "unsent": self.topics.unsent,
            "faults": faults,
        })  # fmt: skip

    def close(self) -> None:
        """Close the topics and the simulator."""
        self.topics.close()
        self.robot.close()
