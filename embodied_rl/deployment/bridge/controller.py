"""One tick of the bridge: the newest messages go into the core, questions to the policy, a command comes out.

The control loop calls it, in real time from a thread of its own, in lockstep once for each observation. It waits for
nobody. An episode begins when it was asked for and everything that the robot says was said after that.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.bridge.asking import Answer, Question
from embodied_rl.deployment.bridge.episodes import AskedEpisode, EpisodeDesk
from embodied_rl.deployment.bridge.inbox import Inbox
from embodied_rl.deployment.bridge.motions import MotionDesk
from embodied_rl.deployment.bridge.operator_topics import OperatorListener
from embodied_rl.deployment.bridge.reporting import NO_EPISODE, StepContext
from embodied_rl.deployment.control.core import DeploymentCore
from embodied_rl.deployment.control.modes import MOVING
from embodied_rl.deployment.execution.tick import ExecutedStep, Mode, State, Tick
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fields import UnusableMessageError
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source

LOST_S = 1.0
"""Seconds of silence after which a robot may be elsewhere, such as after its driver was started anew."""


class Asking(Protocol):
    """Who takes questions and gives answers, without letting the control loop wait."""

    def ask(self, question: Question) -> None: ...
    def take_answers(self) -> list[Answer]: ...


@dataclass(frozen=True)
class Surroundings:
    """What a controller listens to and speaks with.

    Attributes:
        inbox: messages of the robot. operator: the operator's. desk: episodes.
        asking: the policy; None: the operator drives.
        now_ns: the clock that stamps messages.
        motions: returns and replays.
    """

    inbox: Inbox
    operator: OperatorListener
    desk: EpisodeDesk
    asking: Asking | None
    now_ns: Callable[[], int]
    motions: MotionDesk = field(default_factory=MotionDesk)


class Controller:
    """Controls a robot.

    Args:
        robot: its description. core: configured for it.
        around: what it listens to and speaks with.
        episodic: it acts in episodes alone, from when one is asked for until its outcome.

    Attributes:
        present: the episode that runs, or ran last; None before the first one.
        waiting: nothing is commanded, because no episode runs.
        pending: it becomes active as soon as all that the robot says is fresh.
        why: in words, why it is not active. unread: what cannot be read of the newest messages.
        policy_why: what the policy failed at last. tick_why: why the robot holds.
        ended: control steps that have ended and were not taken yet.
        refused: what was wrong with the last chunk that was refused.
        barred: in words, why the robot must not move at present; empty: it may. Any thread may say so.
    """

    def __init__(self, robot: RobotDescription, core: DeploymentCore, around: Surroundings, *, episodic: bool) -> None:
        self.core, self.around = core, around
        self.present: AskedEpisode | None = None
        self.waiting, self.why, self.policy_why, self.refused = episodic, "", "", ""
        self.unread = self.tick_why = self.barred = ""
        self.ended: list[tuple[ExecutedStep, StepContext]] = []
        self.pending, self._leaving = not episodic, False
        names = [entry.name for entry in robot.state]
        self._measured = [names.index(entry.measured) if entry.measured else None for entry in robot.actions]
        self._topics = {name: robot.topics[name].name for name in around.inbox.mapping.topics}
        self._command, self._place = np.zeros(len(robot.actions)), np.full(len(robot.actions), np.nan)
        self._begins = self._asks = self._lost = False
        self._wishes = True
        self._decisions = self._number = 0
        self._context, self._label = StepContext(0, NO_EPISODE, 0, "", {}), ""

    @property
    def episode(self) -> int:
        """Return the index of the present episode, below 0 without one."""
        return NO_EPISODE if self.present is None else self.present.index

    def tick(self) -> Tick | None:
        """Decide what the robot is told now; None: nothing, because it is not active."""
        self.follow_episodes()
        measured = self._observe()
        if self.pending and not self._leaving:
            if self.core.mode == Mode.ESTOP:
                self._operate(Mode.ESTOP)  # else nobody would hear the reset that an activation waits for
            self._activate(measured)
        self._let_go()
        if self.core.state != State.ACTIVE:
            return None
        self._ask_to_run()
        self._operate(self.core.mode)
        self._talk_with_policy()
        made = self.core.tick()
        if made.begins:
            self._note_begin()
        if made.ended is not None:
            self.ended.append((made.ended, replace(self._context, label=self._label)))
            self._label = ""
        self._command = self._command if made.command is None else made.command
        self.tick_why = made.why if made.source == Source.HOLD else ""
        return made

    def hold(self) -> None:
        """Let the robot hold until the operator asks for something else."""
        self._begins = False
        self.around.operator.ask(Mode.HOLD)

    def leave(self) -> bool:
        """Bring the robot to rest, and return whether it is and nothing is commanded any more; called until it does."""
        self._leaving = True
        if self.core.state == State.ACTIVE:
            self.core.deactivate()
        return self.core.state != State.ACTIVE

    def take_ended(self) -> list[tuple[ExecutedStep, StepContext]]:
        """Return the control steps that have ended since the last call."""
        count = len(self.ended)
        found, self.ended[:count] = self.ended[:count], []
        return found

    def find_floor(self) -> int:
        """Return after when messages must have been published to count, in ns of the transport."""
        return 0 if self.present is None else self.around.desk.find_floor(self.present)

    def is_behind(self) -> bool:
        """Return whether an episode was asked for that it has not noticed yet."""
        return self.around.desk.asked != self.present

    def follow_episodes(self) -> None:
        """Notice an episode that was asked for, or has ended."""
        asked = self.around.desk.asked
        if asked is not None and asked != self.present:
            if self.core.state == State.ACTIVE:
                self.core.deactivate(at_once=True)
            self.core.forget_streams()
            self.around.motions.forget()  # the robot begins elsewhere
            self.present, self.pending, self.waiting = asked, True, False
            self._lost, self._wishes = False, True
        elif asked is not None and not self.waiting and self.around.desk.is_over(asked):
            self.pending, self.waiting, self.why = False, True, "the episode has ended"
            self.tick_why = ""
            self.around.motions.follow(Mode.HOLD, self.around.desk.find_label(asked), self.around.desk.words or "")
            if self.core.state == State.ACTIVE:
                self.core.deactivate(at_once=True)

    def _observe(self) -> NDArray[np.float64]:
        """Tell the core what topics have said last; return what is measured, float64 [A], NaN where nothing is."""
        inbox, floor = self.around.inbox, self.find_floor()
        newest = {name: each for name, each in inbox.newest.copy().items() if each.source_ns > floor}
        measured, unread = np.full(len(self._measured), np.nan), ""
        try:
            state = inbox.mapping.read_state({name: each.message for name, each in newest.items()})
            measured = np.array([np.nan if place is None else state[place] for place in self._measured])
        except UnusableMessageError as error:
            unread = str(error)
        self.unread = unread
        self.core.observe({name: each.stream for name, each in newest.items()}, measured)
        self._place = measured
        return measured

    def _activate(self, measured: NDArray[np.float64]) -> None:
        """Begin as soon as all that the robot says is fresh, and said after the episode was asked for.

        After a silence what nothing measures, such as a gripper, is where it was commanded last: it drops nothing.
        """
        if self.around.desk.words is None or self.around.desk.words_ns < self.find_floor():
            self.why = "nobody has said the words of the task"
            return
        try:
            self.core.activate(measured, self._command if self._lost else None)
        except UserError as error:
            self.why = str(error)
            return
        self.pending, self.waiting, self.why, self.policy_why = False, False, "", ""
        if not self._lost:
            self._decisions = self._number = 0
        self.around.operator.ask(None)  # what is asked for anew is asked for once more
        self._begins, self._asks = self._wishes and self.around.asking is not None, False
        self._operate(Mode.HOLD, old=True)
        if self._lost:
            self._begins &= not self._label  # judged during the silence
        else:
            self._label = ""
        self._lost = False

    def _let_go(self) -> None:
        """Give no more commands while the robot is silent for long; afterwards they begin where it is then.

        Else a driver that is started anew would take the robot back to where it was, at the speed that it likes.
        """
        if self._leaving or self.core.state != State.ACTIVE or not self.around.inbox.is_lost(LOST_S):
            return
        if not self._lost:
            self._lost, self._wishes = True, self._begins or self.core.mode == Mode.RUN
        self.core.deactivate()
        self.pending = self.core.state != State.ACTIVE

    def _ask_to_run(self) -> None:
        """Ask for the policy until it was let in once, such as when the dead man's switch is held at last."""
        if not self._begins or self.barred or self.core.mode == Mode.TELEOP:
            return
        if self.core.mode == Mode.RUN:
            self._begins = False
        else:
            self._asks = not self._asks
            self.around.operator.ask(Mode.RUN if self._asks else None)

    def _operate(self, mode: Mode, *, old: bool = False) -> None:
        """Hand over what the operator does; who stops, holds or judges does not want that the policy begins.

        What is `old` was said while nothing was commanded: then it makes the robot hold, and never move.
        """
        said = self.around.operator.read(mode, self._command)
        self._label = said.label or self._label
        if old:
            said = replace(said, wanted=Mode.HOLD if said.wanted == Mode.HOLD else None, label="", store=False)
        if self._begins and (said.estop or said.label or said.wanted in (Mode.HOLD, Mode.RETURN, Mode.REPLAY)):
            self._begins = False
            self.around.operator.ask(None)
        if self.barred:
            if said.wanted is not None:
                self.around.operator.ask(None)  # nor does it move by an old wish when it may again
            said = replace(said, wanted=Mode.HOLD if mode in MOVING else None)
        motions, words = self.around.motions, self.around.desk.words or ""
        self.core.operate(motions.prepare(said, self.core, (self._place, self._command), words))
        motions.follow(self.core.mode, said.label, words)

    def _talk_with_policy(self) -> None:
        if self.around.asking is None:
            return
        self._take_answers(self.around.asking)
        request = self.core.request()
        if request is not None:
            messages, words = self.around.inbox.keep(), self.around.desk.words or ""
            observe = partial(self.around.inbox.observe, messages, words)
            episode = None if self.present is None else self.present.index
            self.around.asking.ask(Question(request, observe, episode, self._decisions))
            self._decisions += 1
            self._take_answers(self.around.asking)  # in lockstep it is there already

    def _take_answers(self, asking: Asking) -> None:
        for answer in asking.take_answers():
            if answer.chunk is None:
                self.policy_why = answer.failure
                continue
            refusal = self.core.receive(answer.chunk)
            self.policy_why, self.refused = "", self.refused if refusal is None else refusal.message

    def _note_begin(self) -> None:
        newest = self.around.inbox.newest.copy()
        observed = {self._topics[name]: each.source_ns for name, each in newest.items()}
        words = self.around.desk.words or ""
        self._context = StepContext(self.around.now_ns(), self.episode, self._number, words, observed)
        self._number += 1
