"""The deployment core: decides in each tick of a control loop what a robot is commanded, and says why.

It is pure: no input, no output, and a clock that is given. Whoever runs the loop calls, in each tick and in this order,
`observe` with what topics have said last, `operate` with what the operator does, `request` and `receive`, and then
`tick`, whose command it publishes. What is wanted passes the safety filter, always. Shapes: `A` action entries.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.intentions import Want
from embodied_rl.deployment.control.life_cycle import LifeCycle
from embodied_rl.deployment.control.modes import MOVING, Modes
from embodied_rl.deployment.control.parts import CoreParts, assemble_parts
from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.control.status import Status
from embodied_rl.deployment.execution.messages import Chunk, ChunkRefusal, ChunkRequest, Reason
from embodied_rl.deployment.execution.motion import Motion
from embodied_rl.deployment.execution.safety_filter import FilteredCommand
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import Mode, OperatorInput, State, Stream, Tick
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source

Vector = NDArray[np.float64]
LABELS = ("success", "failure", "abort")


class DeploymentCore:
    """Commands one robot.

    Args:
        clock: returns seconds; monotonic.
        source_clock: returns the time in ns of the clock that topics are stamped by, such as the system's on the same
            machine, or /clock's; None: it is estimated for each topic.
    """

    def __init__(self, clock: Callable[[], float], source_clock: Callable[[], int] | None = None) -> None:
        self._clock, self._source_clock = clock, source_clock
        self._life, self._modes = LifeCycle(), Modes()
        self._operator = OperatorInput()
        self._counts: Counter[str] = Counter()
        self._parts: CoreParts | None = None
        self._blocked, self._refusal, self._unfit = "", "", ""
        self._refused: Mode | None = None  # the mode that the last refusal was about
        self._still = True

    @property
    def state(self) -> State:
        """Return the state of the life cycle."""
        return self._life.state

    @property
    def mode(self) -> Mode:
        """Return the mode."""
        return self._modes.mode

    def configure(self, settings: CoreSettings, policy: Settings | None = None) -> None:
        """Become inactive: know the robot, and how the policy's chunks are executed.

        Args:
            settings: of the robot and its operator.
            policy: None: there is none, and the robot can be driven by a human alone.

        Raises:
            UserError: the core is configured already, or policy and robot differ in size or rate.
        """
        self._life.check("configure")
        self._parts = assemble_parts(settings, policy, lambda: self._now, self._source_clock)
        self._command = np.zeros(len(settings.limits.entries))
        self._measured = np.full(len(settings.limits.entries), np.nan)
        self._life.advance("configure")

    def activate(self, measured: Vector, start: Vector | None = None) -> None:
        """Become active, in hold: from now on `tick` gives commands, and they begin where the robot is.

        Args:
            measured: float64 [A], where the robot is; NaN for entries that nothing measures.
            start: float64 [A], where entries begin that nothing measures; None: at the number of their box that is
                nearest to 0.

        Raises:
            UserError: the emergency stop is latched, a stream is stale, an entry is not measured or outside its box, or
                the probe has found that measured motion is not what was commanded.
        """
        self._life.check("activate")
        parts, now = self._get_parts(), self._read_clock()
        if self._modes.latched_s is not None:
            raise UserError("activate was refused: the emergency stop is latched. Release the button, then reset.")
        if stale := parts.guard.gate.explain(now):
            raise UserError(f"activate was refused: {stale}. See that these topics are published.")
        if not parts.is_measured(measured):
            raise UserError("activate was refused: an entry that must be measured is NaN or infinite.")
        if parts.probe.refused or (parts.probe.pending and (outside := parts.probe.find_outside(measured))):
            raise UserError(f"activate was refused: {parts.probe.refused or f'{outside} is measured outside its box.'}")
        self._measured = parts.keep_measured(measured)
        parts.guard.forget()
        parts.probe.begin(self._measured)
        parts.filter.begin(self._measured, start)
        self._command = self._before = parts.filter.command
        self._modes.fall("no mode was asked for")
        self._phase, self._leaving, self._still, self._anew = 0, False, True, True
        self._life.advance("activate")

    def deactivate(self, at_once: bool = False) -> None:
        """Become inactive: ramp to rest, and give no more commands when the robot is commanded to be still.

        Args:
            at_once: give no more commands from now on; for a simulated robot that is reset.

        Raises:
            UserError: the core is not active.
        """
        self._life.check("deactivate")
        self._leaving = True
        self._change_mode(lambda: self._modes.fall("the robot is being deactivated"))
        if at_once or self._still or self._get_parts().guard.loop.is_lost(self._read_clock()):
            self._life.advance("deactivate")

    def clean_up(self) -> None:
        """Become unconfigured; raises `UserError` unless inactive."""
        self._life.advance("clean_up")
        self._parts = None

    def shut_down(self) -> None:
        """Become finalized, which is the end; raises `UserError` while active."""
        self._life.advance("shut_down")

    def forget_streams(self) -> None:
        """Forget all readings, after a simulated world was reset: its stamps begin anew."""
        self._get_parts().guard.gate.forget()

    def observe(self, streams: Mapping[str, Stream], measured: Vector) -> None:
        """Take what topics have said last.

        Args:
            streams: by the topic's name; what says nothing new may be repeated or left out.
            measured: float64 [A], made from the streams that measure, NaN for entries that nothing measures. It is
                used if these are accepted, and they are refused if it holds NaN for another entry.

        Raises:
            UserError: a stream that no rule names, or another number of entries.
        """
        parts, now = self._get_parts(), self._read_clock()
        if np.shape(measured) != self._measured.shape:
            raise UserError(f"observe: {len(self._measured)} entries are measured, not {list(np.shape(measured))}.")
        if parts.guard.gate.observe(streams, now, parts.is_measured(measured)):
            self._measured = parts.keep_measured(measured)

    def operate(self, operator: OperatorInput) -> str:
        """Take what the operator does; return in words what was refused of it, empty if nothing was."""
        now, before = self._read_clock(), self._operator
        operator, unfit = (operator, "") if self._parts is None else self._parts.check_teleop(operator)
        self._counts["human's commands refused"] += bool(unfit)
        self._operator, self._unfit, said = operator, unfit, ""
        self._update_refusal(now)
        stopped = operator.estop or (operator.wanted == Mode.ESTOP != before.wanted)
        if stopped:
            self._change_mode(lambda: self._modes.stop(now, "the emergency stop was pressed"))
        self._release_deadman(now)
        if operator.wanted not in (None, Mode.ESTOP) and operator.wanted != before.wanted:
            said = self._ask(operator.wanted, now)  # before the reset: a stop leads to hold, never on from it
        if operator.reset and not before.reset:
            said = str(self._change_mode(lambda: self._modes.reset(stopped))) or said
        if operator.label and operator.label != before.label:
            said = self._take_label(operator.label) or said
        self._refusal = said or self._refusal
        self._counts["asked for and refused"] += bool(said or unfit)
        return said or unfit

    def plan(self, motion: Motion) -> None:
        """Say what `RETURN` or `REPLAY` does, from when the operator asks for it.

        Raises:
            UserError: a motion is under way.
        """
        if self.mode in (Mode.RETURN, Mode.REPLAY):
            raise UserError(f"A {self.mode} is under way. Hold first, then plan another motion.")
        self._get_parts().intentions.motion = motion

    def request(self) -> ChunkRequest | None:
        """Return what the policy should be asked for now, with the newest observation; None: nothing."""
        now = self._read_clock()
        if self._parts is None or self.mode != Mode.RUN or self._phase != 0:
            return None
        guard, intentions = self._parts.guard, self._parts.intentions
        if intentions.executor is None or self._blocked or self._parts.probe.pending or guard.gate.explain(now):
            return None
        made = intentions.executor.request()
        if made is not None:
            intentions.note_request(now)
        return made

    def receive(self, chunk: Chunk) -> ChunkRefusal | None:
        """Take an answer of the policy; or refuse it whole, and say why."""
        self._read_clock()
        parts = self._get_parts()
        if parts.intentions.executor is None:
            return ChunkRefusal(Reason.EPOCH, "a chunk came, and no policy was configured")
        refusal = parts.intentions.executor.receive(chunk)
        parts.intentions.note_answer(refusal)
        return refusal

    def tick(self) -> Tick:
        """Return what the robot is told now; once in each period of `command_hz`."""
        now = self._read_clock()
        if (parts := self._parts) is None or self.state != State.ACTIVE:
            return Tick(None, None, None, Source.HOLD, self.mode, self.state, self._modes.why)
        self._counts["ticks"] += 1
        parts.guard.update(now, self._command, self._measured)
        lost = parts.guard.lost
        if lost:
            parts.probe.begin(self._measured)
        if lost and (why := self._begin_again(parts)):
            made = Tick(None, None, None, Source.HOLD, self.mode, self.state, why)
        else:
            want = Want(None, why=lost) if lost else self._want(parts, now)
            filtered = parts.filter.step(want.wanted, self._measured, parts.guard.tracking.drift)
            self._before, self._command, self._still = self._command, filtered.command, filtered.still
            made = replace(self._report(parts, want, filtered, now), anew=self._anew)
            self._anew = False
        if self._leaving and self._still:
            self._life.advance("deactivate")
        return made

    def status(self) -> Status:
        """Return a snapshot, which says all that an operator who comes late must know."""
        now, parts = self._read_clock(), self._parts
        status = Status(
            now,
            self.state,
            self.mode,
            self._modes.why,
            self._modes.latched_s,
            blocked=self._blocked,
            said=self._unfit or self._refusal,
            still=self._still,
            counts=dict(self._counts),
        )
        if parts is None:
            return status
        gate, loop = parts.guard.gate, parts.guard.loop
        counts = status.counts | {"overruns": loop.overruns, "clock jumps": loop.jumps}
        status = replace(status, stale=gate.explain(now), counts=counts, streams=gate.list_counts())
        return status if parts.intentions.executor is None else status.add_executor(parts.intentions.executor)

    def _begin_again(self, parts: CoreParts) -> str:
        """Begin again where the robot is, which stopped by itself; return in words why not yet, empty if it was done.

        It waits until all was well for the settling time: what arrives first may have been said before the pause.
        """
        if parts.guard.loop.lost:
            self._counts["losses"] += 1
            self._give_up_motion(parts.guard.lost)
        why = parts.guard.explain(Mode.HOLD)
        try:
            if not why:
                parts.filter.begin(self._measured, self._command)
        except UserError as error:
            why = str(error)
        self._still, self._blocked = True, "; ".join(filter(None, (self._modes.why, why))) if why else ""
        if not why:
            parts.guard.lost, self._anew = "", True
            self._command = self._before = parts.filter.command
            parts.intentions.interrupt(self._command)
        return self._blocked

    def _give_up_motion(self, why: str) -> None:
        """Let a return or a replay fall to hold: its time went on without it."""
        if self.mode in (Mode.RETURN, Mode.REPLAY):
            self._change_mode(lambda: self._modes.fall(f"the {self.mode} was given up: {why}"))

    def _want(self, parts: CoreParts, now: float) -> Want:
        """Return what is wanted in this tick, after the watchdogs were asked."""
        self._release_deadman(now)
        if self.mode in MOVING and parts.guard.reasons["tracking"]:
            self._change_mode(lambda: self._modes.fall(parts.guard.reasons["tracking"]))
        blocked = parts.guard.explain(self.mode) if self.mode in MOVING else ""
        if blocked and not self._blocked:
            self._counts["holds"] += 1
            parts.intentions.interrupt(self._command)
        self._blocked = blocked
        if blocked:
            self._give_up_motion(blocked)
        if parts.probe.pending and (want := self._probe(parts, moves=self.mode in MOVING and not blocked)) is not None:
            return want
        if self.mode not in MOVING or blocked:
            return Want(None, why=blocked or self._modes.why)
        if self.mode == Mode.TELEOP:
            rate = (self._command - self._before) * parts.settings.command_hz
            want = parts.intentions.follow_human(self._operator, now, self._command, rate)
        else:
            want = parts.intentions.want(self.mode, self._phase, self._command, self._measured)
        if want.over:
            self._change_mode(lambda: self._modes.fall(want.over))
            return Want(None, why=want.over)
        return want

    def _probe(self, parts: CoreParts, *, moves: bool) -> Want | None:
        """Return what the probe wants; None: the mode decides. A robot that does not pass is deactivated."""
        wanted = None
        if moves:
            wanted = parts.probe.move(self._command, self._measured, self._still)
        else:
            parts.probe.hold(self._measured, self._still)
        if parts.probe.refused:
            self._leaving = True
            self._change_mode(lambda: self._modes.fall(parts.probe.refused))
            return None
        why = "comparing commanded and measured motion"
        return Want(wanted, Source.HOLD if wanted is None else Source.REPLAY, why) if moves else None

    def _report(self, parts: CoreParts, want: Want, filtered: FilteredCommand, now: float) -> Tick:
        """Return the tick, and end its control step if it is the last one."""
        account, made, begins = parts.account, parts.intentions.made, self._phase == 0
        if begins:
            account.begin()
        if want.source == Source.POLICY and made is not None:
            account.step, account.sequence, account.policy_version = made.step, made.sequence, made.policy_version
        why = want.why or filtered.why
        action, source = account.add(want.wanted, filtered.command, want.source, why)
        ended = None
        self._phase = (self._phase + 1) % parts.settings.ticks
        if self._phase == 0:
            ended = account.end(now, self.mode)
            if parts.intentions.executor is not None:
                parts.intentions.executor.correct(ended.executed)
        command, wanted = filtered.command, want.wanted
        ids = (made.step, made.sequence, made.policy_version) if want.source == Source.POLICY and made else (-1, -1, -1)
        return Tick(command, wanted, action, source, self.mode, self.state, why, *ids, begins=begins, ended=ended)

    def _change_mode(self, change: Callable[[], object]) -> object:
        """Let the mode change; what was planned in the mode before is forgotten."""
        before = self.mode
        said = change()
        if self.mode != before and self._parts is not None:
            self._counts[f"{before} to {self.mode}"] += 1
            self._parts.intentions.interrupt(self._command)
            self._blocked, self._refusal, self._refused = "", "", None
        return said

    def _ask(self, wanted: Mode, now: float) -> str:
        said = str(self._change_mode(lambda: self._modes.ask(wanted, self._find_obstacle(wanted, now))))
        if said and wanted == Mode.TELEOP and self.mode in MOVING:  # the policy must not go on when all is well again
            self._change_mode(lambda: self._modes.fall(f"a takeover was refused: {said}"))
        self._refusal, self._refused = (said, wanted) if said else ("", None)
        return said

    def _update_refusal(self, now: float) -> None:
        """Forget the refusal of a mode once that mode would not be refused any more."""
        if self._refused is not None:
            self._refusal = self._modes.explain(self._refused, self._find_obstacle(self._refused, now))
            self._refused = self._refused if self._refusal else None

    def _find_obstacle(self, wanted: Mode, now: float) -> str:
        """Return in words why a mode cannot begin; empty if it can."""
        parts = self._parts
        if parts is None or self.state != State.ACTIVE:
            return f"the robot is {self.state}"
        if self._leaving:
            return "the robot is being deactivated"
        stale = parts.guard.gate.explain(now, True if wanted in (Mode.TELEOP, Mode.RETURN) else None)
        released = parts.guard.explain_deadman(self._operator, now)
        return parts.intentions.find_lack(wanted) or released or stale or parts.guard.explain(wanted)

    def _release_deadman(self, now: float) -> None:
        """Let a robot that moves fall to hold when the dead man's switch is released; it stays there."""
        if self._parts is None or self.mode not in MOVING:
            return
        if released := self._parts.guard.explain_deadman(self._operator, now):
            self._change_mode(lambda: self._modes.fall(released))

    def _get_parts(self) -> CoreParts:
        if self._parts is None:
            raise UserError(f"The robot is {self.state}: configure it first.")
        return self._parts

    def _read_clock(self) -> float:
        self._now = self._clock()
        return self._now

    def _take_label(self, label: str) -> str:
        """Let the robot hold after an episode was judged."""
        if label not in LABELS:
            return f"label {label!r} was refused: it is none of {', '.join(LABELS)}."
        self._change_mode(lambda: self._modes.fall(f"the operator said {label}"))
        return ""
