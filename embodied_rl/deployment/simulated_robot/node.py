"""The node: it obeys commands and requests, lets time pass, and publishes what the robot measures."""

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from embodied_rl.config.freeze import thaw_config
from embodied_rl.deployment.robots.commands import CommandMapping
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.simulated_robot.command_check import CommandCheck
from embodied_rl.deployment.simulated_robot.drive import Drive
from embodied_rl.deployment.simulated_robot.faults import Pictures, SensorFaults, States
from embodied_rl.deployment.simulated_robot.fit import check_fit
from embodied_rl.deployment.simulated_robot.requests import make_printable, read_episode, read_faults
from embodied_rl.deployment.simulated_robot.settings import RobotSettings
from embodied_rl.deployment.simulated_robot.topics import RobotTopics, make_listeners
from embodied_rl.deployment.transport.emergency_stop import EmergencyStopState
from embodied_rl.deployment.transport.interface import Transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import RobotOutcome, ServoedRobot
from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl.schema import FaultsNode

STATUS_S = 0.5
"""Seconds between two messages on /simulation/status, where nothing changes."""
TELLING_S = 1.0
"""Seconds between two lines that say whether commands come: one that stutters does not fill the terminal."""


class Watcher:
    """Is told what happens to a simulated robot."""

    def on_begin(self, episode: Episode, instruction: str) -> None:
        """An episode began."""

    def on_picture(self, pictures: dict[str, Array]) -> None:
        """Pictures were taken, faults left aside."""

    def on_end(self, episode: Episode, outcome: RobotOutcome) -> None:
        """An episode ended."""


class SimulatedRobot:
    """A robot of a simulator as a node of ROS 2.

    In lockstep everything happens in the callbacks of `node`: a request or a command is answered by states, pictures,
    then the clock, all with one stamp; the clock comes last. In real time `tick` makes one step of the servo.

    Args:
        robot: who is simulated. description: its topics. node: the transport; nobody else spins it.
        settings: of the simulation.
        clock: seconds, monotonic, for deadlines.
        tell: takes lines for whoever watches.
        watcher: of what happens.

    Attributes:
        episode: the present one; None before the first one, and after the node restarted.
        counts: commands, refused (commands and requests), episodes, overruns.

    Raises:
        UserError: the simulated robot is not the one that is described, or its topics cannot be published.
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
        self._told_silent, self._told_s = False, -TELLING_S
        self.progress_s = clock()
        """When something moved last in lockstep, by the clock."""
        self._check = CommandCheck(description)
        self._command = np.full(len(description.actions), np.nan)
        """What the command topics have given since the last whole command; NaN: not yet."""
        self._drive = Drive(self._check, settings.timeout_s)
        self._clock, self._tell, self._watcher = clock, tell, watcher or Watcher()
        self._control_ns = round(1e9 / description.control_hz)
        self._per_picture = max(1, round(1 / (description.control_hz * robot.servo_s)))
        self._stamp_ns, self._ticks = node.now(), 0
        self._said_status, self._status_s = "", -STATUS_S
        self._said_instruction: str | None = None
        self._said_outcome = self._awaited = False
        self._said_faults: set[str] = set()
        self._stop_name, self._holders = description.operator.estop, EmergencyStopState()
        self._gone_until: float | None = None
        self._restarted_ns = 0
        self._restart_s = 0.0
        self._listeners = make_listeners(
            description,
            {"estop": self._on_stop, "reset": self._on_reset, "faults": self._on_faults},
            {
                name: partial(self._on_command, CommandMapping(description, node.messages, name))
                for name in description.command_topics
            },
        )
        self.topics = RobotTopics(node, description, robot, self._listeners, settings.lockstep)
        self._faults = SensorFaults(FaultsNode())
        self.set_faults(settings.faults)

    # -- what others ask ------------------------------------------------------------------------------------------

    def begin(self, episode: Episode) -> None:
        """Begin an episode: the scene is set up anew, the robot is at its start, at rest.

        Raises:
            UserError: there is no such task, split or initial state; everything stays as it was.
        """
        self.robot.begin(episode)
        self.episode, self._said_outcome, self._said_instruction = episode, False, None
        self._awaited = self._told_silent = False
        self._drive.begin()
        self._command[:] = np.nan
        self._watcher.on_begin(episode, self.robot.instruction)
        self._tell(f"episode {episode.index}: {self.robot.instruction}")
        if self.settings.lockstep:
            self._advance()

    def set_faults(self, faults: FaultsNode) -> None:
        """Let these faults begin, and all others end."""
        self._faults = SensorFaults(faults)
        self._drive.delay_s = faults.command_delay
        self._restart_s = faults.restart

    def _on_reset(self, message: Any, received_ns: int, source_ns: int) -> None:
        if source_ns <= self._restarted_ns:  # a latched request of before: the node's restart ended that episode
            return
        try:
            self.begin(read_episode(message.data, self.robot.spec))
            self._awaited = True
        except UserError as error:
            self._refuse(f"a request for an episode: {error}")

    def _on_faults(self, message: Any, received_ns: int, source_ns: int) -> None:
        try:
            self.set_faults(read_faults(message.data))
        except UserError as error:
            self._refuse(f"a request for faults: {error}")
            return
        self._tell(f"faults: {make_printable(message.data)}")

    def _on_stop(self, message: Any, received_ns: int, source_ns: int) -> None:
        pressed = self._holders.update(self.topics.find_heard(self._stop_name), bool(message.data))
        if pressed != self._drive.pressed:
            self._tell(f"the emergency stop is {'pressed' if pressed else 'released'}")
        self._drive.press(pressed)
        self._say_status()

    def _on_command(self, mapping: CommandMapping, message: Any, received_ns: int, source_ns: int) -> None:
        try:
            said = mapping.decode(message)
            self._check.check(said)
            command = np.where(np.isnan(said), self._command, said)
            if np.isnan(command).any():  # another topic's part has not come
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
        self._awaited = True
        if self.settings.lockstep and self.episode is not None and self.robot.outcome is None:
            self.robot.control_step(self._check.find_action(command))
            self._advance()

    def _refuse(self, words: str) -> None:
        self.counts["refused"] += 1
        self.last_refusal = words = make_printable(words)
        if self.counts["refused"].bit_count() == 1:  # the 1st, 2nd, 4th …: a stranger does not fill the terminal
            self._tell(f"refused {words} (refused so far: {self.counts['refused']})")
        self._say_status()

    # -- time passes ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Make one step of the servo in real time, and publish what is due."""
        now = self._clock()
        self._drive.step(self.robot, now)
        self._tell_silence(now)
        self._ticks += 1
        self._stamp_ns = self.node.now()
        self.tend()
        if self.topics.is_open:
            self._publish(pictures=self._ticks % self._per_picture == 0)

    def _tell_silence(self, now: float) -> None:
        """Say that commands have ended, as when a bridge was killed, and that they come again."""
        silent = self._drive.silent
        if self._drive.stopped or silent == self._told_silent or now - self._told_s < TELLING_S:
            return
        self._told_silent, self._told_s = silent, now
        self._tell(f"{self._drive.why}: the robot stops by itself" if silent else "commands come again")

    def _advance(self) -> None:
        """Publish what the robot measures after a control step in lockstep."""
        self._stamp_ns += self._control_ns
        self.progress_s = self._clock()
        if self.topics.is_open:
            self._publish(pictures=True)
            self._say_status()

    def repeat(self) -> None:
        """In lockstep, publish again what was published last, with the same stamps."""
        if self.topics.is_open and self.episode is not None:
            self._publish(pictures=True, again=True)

    @property
    def awaited(self) -> bool:
        """Whether somebody has asked for the present episode, or begun to command it, and it has not ended."""
        return self.episode is not None and self.robot.outcome is None and self._awaited

    def note_overrun(self, seconds: float) -> None:
        """Say that the machine was too slow for real time, and how much of it was lost."""
        self.counts["overruns"] += 1
        self.late_s += seconds
        if self.counts["overruns"].bit_count() == 1:
            self._tell(f"this machine was {seconds:.2f} s late; the simulated robot stood still meanwhile")

    def give_up(self) -> None:
        """In lockstep, end the episode as a failure because nobody commands the robot."""
        assert self.episode is not None
        seconds = f"{self.settings.deadline_s:g}"
        self._tell(f"episode {self.episode.index} is given up: no command for {seconds} s")
        self._end(RobotOutcome(False, f"no command for {seconds} s", True, 0, 0.0))
        self.episode = None

    def tend(self) -> None:
        """Do what takes its time: leave the topics and come back, where a restart was asked for; tell the status."""
        now = self._clock()
        if self._restart_s > 0:
            self._tell(f"the node restarts, and is gone for {self._restart_s:g} s")
            self._gone_until, self._restart_s = now + self._restart_s, 0.0
            self._restarted_ns = self.node.now()
            self.topics.close()
            self._told_silent = False
            self._drive.begin()
            self.episode, self._said_instruction = None, None
        if self._gone_until is not None and now >= self._gone_until:
            self._gone_until = None
            self.topics.open(self._listeners)
        if now - self._status_s >= STATUS_S:
            self._said_status = ""
            self._look_for_faults()
        self._say_status()

    def _look_for_faults(self) -> None:
        """Say what does not arrive here, or there: the middleware tells nobody."""
        for words in filter(None, (self.topics.find_fault(), self.topics.last_unsent)):
            if words not in self._said_faults:
                self._said_faults.add(words)
                self._tell(words)

    # -- what it says ---------------------------------------------------------------------------------------------

    def _publish(self, pictures: bool, again: bool = False) -> None:
        if self.robot.instruction != self._said_instruction:
            self._said_instruction = self.robot.instruction
            self.topics.send_instruction(self._said_instruction)
        stamp = self._faults.jump(self._stamp_ns)
        for states in self._faults.pass_states(States(stamp, self.robot.joint_names, self.robot.read())):
            self.topics.send_states(states)
        if pictures:
            taken = self.robot.take_pictures()
            if not again:
                self._watcher.on_picture(taken)
            for shown in self._faults.pass_pictures(Pictures(stamp, taken)):
                self.topics.send_pictures(shown)
        if self.episode is not None and self.robot.outcome is not None and not self._said_outcome:
            self._end(self.robot.outcome)
        self.topics.send_clock(stamp)

    def _end(self, outcome: RobotOutcome) -> None:
        assert self.episode is not None
        self._said_outcome = True
        self.counts["episodes"] += 1
        self._watcher.on_end(self.episode, outcome)
        self._tell(f"episode {self.episode.index}: {'success' if outcome.success else outcome.failure}")
        if self.topics.is_open:
            self.topics.send_outcome({
                "index": self.episode.index, "success": outcome.success, "failure": outcome.failure,
                "truncated": outcome.truncated, "steps": outcome.steps, "reward": outcome.reward,
            })  # fmt: skip

    def _say_status(self) -> None:
        """Publish the status where it changed, but for the numbers in it."""
        said = json.dumps([self._drive.why, self.last_refusal, self._index, thaw_config(self._faults.faults)])
        if said == self._said_status or not self.topics.is_open:
            return
        self._said_status, self._status_s = said, self._clock()
        self.topics.send_status({
            "mode": "lockstep" if self.settings.lockstep else "real time", "episode": self._index,
            "why": self._drive.why, "last_refusal": self.last_refusal, "late_s": self.late_s, **self.counts,
            "unsent": self.topics.unsent,
            "faults": thaw_config(self._faults.faults),
        })  # fmt: skip

    @property
    def _index(self) -> int | None:
        return None if self.episode is None else self.episode.index

    def close(self) -> None:
        """Leave the topics, and release the simulator."""
        self.topics.close()
        self.robot.close()
