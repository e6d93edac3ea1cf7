"""Deployment core: computes the command of each tick of a robot's control loop, and its reason.

The core is pure: it does no input or output and reads the clock that it is given. In each tick, the control loop calls
`observe` with the newest readings, `operate` with the operator's input, `request` and `receive`, and then `tick`, and
publishes the command of that tick. Every command passes the safety filter. Shapes: `A` action entries.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.control.mode_targets import MOST, ModeTargets, StepAccount, Target, find_material
from embodied_rl.deployment.control.modes import MOVING, Modes, find_next_state
from embodied_rl.deployment.control.probing import MotionProbe
from embodied_rl.deployment.control.settings import CoreSettings
from embodied_rl.deployment.control.watchdogs import Watchdogs
from embodied_rl.deployment.execution.messages import Chunk, ChunkRefusal, ChunkRequest, Reason
from embodied_rl.deployment.execution.safety_filter import SafetyFilter
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.deployment.execution.tick import (
    LABELS,
    Mode,
    Motion,
    OperatorInput,
    State,
    Status,
    StreamReading,
    Tick,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source

Vector = NDArray[np.float64]


class CoreParts(NamedTuple):
    """The parts of a configured core."""

    settings: CoreSettings
    watchdogs: Watchdogs
    targets: ModeTargets
    filter: SafetyFilter
    account: StepAccount
    probe: MotionProbe


class DeploymentCore:
    """Controller of one robot; `state` is that of the life cycle.

    Args:
        clock: returns seconds; monotonic.
        source_clock: returns the time in ns of the clock that stamps the topics, such as the system clock on the same
            machine, or /clock; None: its offset is estimated for each topic.
    """

    def __init__(self, clock: Callable[[], float], source_clock: Callable[[], int] | None = None) -> None:
        self._clock, self._source_clock = clock, source_clock
        self._now = 0.0
        self.state, self._modes = State.UNCONFIGURED, Modes()
        self._operator = OperatorInput()
        self._counts: Counter[str] = Counter()
        self._parts: CoreParts | None = None
        self._hold_reason, self._last_refusal, self._teleop_refusal = "", "", ""
        self._refused: Mode | None = None  # the mode of the last refusal
        self._measured = self._command = self._before = np.zeros(0)  # [A]; the last command and the one before it
        self._phase = 0  # number of the tick in its control step
        self._still, self._deactivating, self._restarted = True, False, False

    @property
    def mode(self) -> Mode:
        """Return the mode."""
        return self._modes.mode

    def configure(self, settings: CoreSettings, policy: Settings | None = None) -> None:
        """Set the robot and the policy; the core becomes inactive. Without a policy only a human can drive.

        Raises:
            UserError: the core is configured already, or policy and robot differ in size or rate.
        """
        following = find_next_state(self.state, "configure")
        if policy is not None:
            settings.check_policy(policy)
        targets = ModeTargets(settings, policy, lambda: self._now)
        account = StepAccount(targets.units, find_material(settings, policy))
        watchdogs = Watchdogs(settings, self._source_clock)
        safety = SafetyFilter(settings.limits, settings.period_s)
        self._parts = CoreParts(settings, watchdogs, targets, safety, account, MotionProbe(settings))
        self._command = np.zeros(len(settings.limits.entries))
        self._measured = np.full(len(settings.limits.entries), np.nan)
        self.state = following

    def activate(self, measured: Vector, start: Vector | None = None) -> None:
        """Become active, in hold: `tick` returns commands from now on, starting at the measured position.

        Args:
            measured: float64 [A], where the robot is; NaN for entries that are not measured.
            start: float64 [A], where these entries start; None: at the value in their box that is nearest to 0.

        Raises:
            UserError: the emergency stop is latched, a stream is stale, an entry is not measured or outside its box, or
                the probe found that the measured motion differs from the commanded one.
        """
        following = find_next_state(self.state, "activate")
        parts, now = self._get_parts(), self._read_clock()
        if self._modes.latched_s is not None:
            raise UserError(
                "activate was refused: the emergency stop is latched. Release the button, then reset.",
                code="estop-latched",
            )
        if stale := parts.watchdogs.gate.explain(now):
            raise UserError(f"activate was refused: {stale}. See that these topics are published.", code="stream-stale")
        if not self._is_measured(parts, measured):
            raise UserError(
                "activate was refused: an entry that must be measured is NaN or infinite.", code="entry-not-measured"
            )
        if parts.probe.refused:
            raise UserError(f"activate was refused: {parts.probe.refused}", code="probe-failed")
        if parts.probe.pending and (outside := parts.probe.find_outside(measured)):
            raise UserError(f"activate was refused: {outside} is measured outside its box.", code="entry-outside-box")
        self._measured = self._keep_measured(parts, measured)
        parts.watchdogs.forget()
        parts.probe.begin(self._measured)
        parts.filter.begin(self._measured, start)
        self._command = self._before = parts.filter.command
        self._modes.enter_hold("no mode was asked for")
        self._phase, self._deactivating, self._still, self._restarted = 0, False, True, True
        self.state = following

    def deactivate(self, at_once: bool = False) -> None:
        """Ramp to rest and become inactive once the commands are at rest; `at_once` is for a simulated robot."""
        following = find_next_state(self.state, "deactivate")
        self._deactivating = True
        self._enter_hold("the robot is being deactivated")
        if at_once or self._still or self._get_parts().watchdogs.loop.is_lost(self._read_clock()):
            self.state = following

    def forget_streams(self) -> None:
        """Forget all readings, after a simulated world was reset: its stamps restart."""
        self._get_parts().watchdogs.gate.forget()

    def observe(self, streams: Mapping[str, StreamReading], measured: Vector) -> None:
        """Take the newest reading of each topic, by name; unchanged readings may be repeated or left out.

        Args:
            measured: float64 [A], made from the streams that measure, NaN for entries that are not measured. It is
                used if these streams are accepted; they are refused if another entry is NaN.

        Raises:
            UserError: an unknown stream, or a wrong number of entries.
        """
        parts, now = self._get_parts(), self._read_clock()
        if np.shape(measured) != self._measured.shape:
            raise UserError(
                f"observe: {len(self._measured)} entries are measured, not {list(np.shape(measured))}.",
                code="measured-shape-mismatch",
            )
        if parts.watchdogs.gate.observe(streams, now, self._is_measured(parts, measured)):
            self._measured = self._keep_measured(parts, measured)

    def operate(self, operator: OperatorInput) -> str:
        """Take the operator's input; return what was refused of it, empty if nothing was."""
        now, before, said, given = self._read_clock(), self._operator, "", operator.teleop
        self._teleop_refusal = ""
        if self._parts is not None and given is not None:
            count = len(self._parts.settings.limits.entries)
            if np.shape(given) != (count,) or (np.abs(given) > MOST).any():
                operator = replace(operator, teleop=None)
                why = f"{count} numbers of at most {MOST:g} are wanted; NaN for none."
                self._teleop_refusal = f"a human's command was refused: {why}"
        self._operator = operator
        self._counts["human's commands refused"] += bool(self._teleop_refusal)
        if self._refused is not None:  # forget the refusal of a mode once the mode would be allowed
            self._last_refusal = self._modes.explain(self._refused, self._find_obstacle(self._refused, now))
            self._refused = self._refused if self._last_refusal else None
        stopped = operator.estop or (operator.wanted == Mode.ESTOP != before.wanted)
        if stopped:
            self._change_mode(lambda: self._modes.stop(now, "the emergency stop was pressed"))
        self._check_deadman(now)
        if operator.wanted not in (None, Mode.ESTOP) and operator.wanted != before.wanted:
            wanted = operator.wanted  # before the reset: a stop leads to hold and no further
            said = str(self._change_mode(lambda: self._modes.ask(wanted, self._find_obstacle(wanted, now))))
            if said and wanted == Mode.TELEOP and self.mode in MOVING:  # the policy must not resume by itself
                self._enter_hold(f"a takeover was refused: {said}")
            self._last_refusal, self._refused = (said, wanted) if said else ("", None)
        if operator.reset and not before.reset:
            said = str(self._change_mode(lambda: self._modes.reset(stopped))) or said
        if (label := operator.label) and label != before.label:
            if label in LABELS:
                self._enter_hold(f"the operator said {label}")
            else:
                said = f"label {label!r} was refused: it is none of {', '.join(LABELS)}."
        self._last_refusal = said or self._last_refusal
        self._counts["asked for and refused"] += bool(said or self._teleop_refusal)
        return said or self._teleop_refusal

    def plan(self, motion: Motion) -> None:
        """Set the motion of `RETURN` or `REPLAY`; raise `UserError` while one is under way."""
        if self.mode in (Mode.RETURN, Mode.REPLAY):
            raise UserError(
                f"A {self.mode} is under way. Hold first, then plan another motion.", code="motion-under-way"
            )
        self._get_parts().targets.motion = motion

    def request(self) -> ChunkRequest | None:
        """Return the request for the policy, to be sent with the newest observation; None: there is none."""
        now = self._read_clock()
        if self._parts is None or self.mode != Mode.RUN or self._phase != 0:
            return None
        watchdogs, targets = self._parts.watchdogs, self._parts.targets
        if targets.executor is None or self._hold_reason or self._parts.probe.pending or watchdogs.gate.explain(now):
            return None
        return targets.request(now)

    def receive(self, chunk: Chunk) -> ChunkRefusal | None:
        """Take a chunk of the policy; return why it was refused, None if it was accepted."""
        self._read_clock()
        parts = self._get_parts()
        if parts.targets.executor is None:
            return ChunkRefusal(Reason.EPOCH, "a chunk came, and no policy was configured")
        return parts.targets.receive(chunk)

    def tick(self) -> Tick:
        """Return the command of this tick; call it once in each period of `command_hz`."""
        now = self._read_clock()
        if (parts := self._parts) is None or self.state != State.ACTIVE:
            return Tick(None, None, None, Source.HOLD, self.mode, self.state, self._modes.why)
        self._counts["ticks"] += 1
        parts.watchdogs.update(now, self._command, self._measured)
        lost = parts.watchdogs.lost
        if lost:
            parts.probe.begin(self._measured)
        if lost and (why := self._restart_commands(parts)):
            made = Tick(None, None, None, Source.HOLD, self.mode, self.state, why)
        else:
            made = self._command_robot(parts, Target(None, why=lost) if lost else self._compute_target(parts, now), now)
        if self._deactivating and self._still:
            self.state = State.INACTIVE
        return made

    def status(self) -> Status:
        """Return a snapshot of the full state."""
        now, parts = self._read_clock(), self._parts
        said, counts, others = self._teleop_refusal or self._last_refusal, dict(self._counts), dict[str, Any]()
        if parts is not None:
            gate, loop, executor = parts.watchdogs.gate, parts.watchdogs.loop, parts.targets.executor
            counts |= {"overruns": loop.overruns, "clock jumps": loop.jumps}
            others = {"stale": gate.explain(now), "streams": gate.list_counts()}
            if executor is not None:
                counts |= {str(name): count for name, count in executor.counts.items()}
                refused = {str(reason): count for reason, count in executor.refused.items()}
                others |= {"epoch": executor.epoch, "step": executor.step, "planned": executor.remaining}
                others |= {"refused": refused}
        modes = (self._modes.mode, self._modes.why, self._modes.latched_s)
        return Status(now, self.state, *modes, self._hold_reason, said, self._still, counts, **others)

    def _restart_commands(self, parts: CoreParts) -> str:
        """Restart commands where a robot is that stopped because commands failed to come; return why that must wait.

        It waits for the settling time, because the first readings may be from before the pause.
        """
        if parts.watchdogs.loop.lost:
            self._counts["losses"] += 1
            self._abort_motion(parts.watchdogs.lost)
        why = parts.watchdogs.explain(Mode.HOLD)
        try:
            if not why:
                parts.filter.begin(self._measured, self._command)
        except UserError as error:
            why = str(error)
        self._still, self._hold_reason = True, "; ".join(filter(None, (self._modes.why, why))) if why else ""
        if not why:
            parts.watchdogs.lost, self._restarted = "", True
            self._command = self._before = parts.filter.command
            parts.targets.interrupt(self._command)
        return self._hold_reason

    def _abort_motion(self, why: str) -> None:
        """Abort a return or a replay, which cannot be resumed after a hold."""
        if self.mode in (Mode.RETURN, Mode.REPLAY):
            self._enter_hold(f"the {self.mode} was given up: {why}")

    def _compute_target(self, parts: CoreParts, now: float) -> Target:
        """Return the target of this tick, after checking the watchdogs."""
        self._check_deadman(now)
        if self.mode in MOVING and parts.watchdogs.reasons["tracking"]:
            self._enter_hold(parts.watchdogs.reasons["tracking"])
        reason = parts.watchdogs.explain(self.mode) if self.mode in MOVING else ""
        if reason and not self._hold_reason:
            self._counts["holds"] += 1
            parts.targets.interrupt(self._command)
        self._hold_reason = reason
        if reason:
            self._abort_motion(reason)
        moves = self.mode in MOVING and not reason
        if parts.probe.pending:
            wanted = None
            if moves:
                wanted = parts.probe.move(self._command, self._measured, self._still)
            else:
                parts.probe.hold(self._measured, self._still)
            if parts.probe.refused:  # the robot is deactivated
                self._deactivating = True
                self._enter_hold(parts.probe.refused)
            elif moves:
                source = Source.HOLD if wanted is None else Source.REPLAY
                return Target(wanted, source, "comparing commanded and measured motion")
        if self.mode not in MOVING or reason:
            return Target(None, why=reason or self._modes.why)
        if self.mode == Mode.TELEOP:
            rate = (self._command - self._before) * parts.settings.command_hz
            target = parts.targets.follow_human(self._operator, now, self._command, rate)
        elif self.mode == Mode.RUN:
            target = parts.targets.follow_plan(self._phase, self._command)
        else:
            target = parts.targets.follow_motion(self._phase, self._command, self._measured)
        if target.over:
            self._enter_hold(target.over)
            return Target(None, why=target.over)
        return target

    def _command_robot(self, parts: CoreParts, target: Target, now: float) -> Tick:
        """Return the tick of a target, after the filter; end its control step if it is the last tick of that step."""
        filtered = parts.filter.step(target.wanted, self._measured, parts.watchdogs.tracking.drift)
        self._before, self._command, self._still = self._command, filtered.command, filtered.still
        account, made, begins, ended, ids = parts.account, parts.targets.made, self._phase == 0, None, (-1, -1, -1)
        if begins:
            account.begin()
        if target.source == Source.POLICY and made is not None:
            account.ids = ids = (made.step, made.sequence, made.policy_version)
        why = target.why or filtered.why
        action, source = account.add(target.wanted, filtered.command, target.source, why)
        self._phase = (self._phase + 1) % parts.settings.ticks
        if self._phase == 0:
            ended = account.end(now, self.mode)
            if parts.targets.executor is not None:
                parts.targets.executor.correct(ended.executed)
        restarted, self._restarted = self._restarted, False
        decided = (action, source, self.mode, self.state, why, *ids)
        return Tick(filtered.command, target.wanted, *decided, restarted=restarted, begins=begins, ended=ended)

    def _change_mode(self, change: Callable[[], object]) -> object:
        """Call a function that may change the mode; a new mode starts without the plan of the mode before."""
        before = self.mode
        said = change()
        if self.mode != before and self._parts is not None:
            self._counts[f"{before} to {self.mode}"] += 1
            self._parts.targets.interrupt(self._command)
            self._hold_reason, self._last_refusal, self._refused = "", "", None
        return said

    def _enter_hold(self, why: str) -> None:
        self._change_mode(lambda: self._modes.enter_hold(why))

    def _find_obstacle(self, wanted: Mode, now: float) -> str:
        """Return why a mode cannot begin; empty if it can."""
        parts = self._parts
        if parts is None or self.state != State.ACTIVE:
            return f"the robot is {self.state}"
        if self._deactivating:
            return "the robot is being deactivated"
        stale = parts.watchdogs.gate.explain(now, True if wanted in (Mode.TELEOP, Mode.RETURN) else None)
        released = parts.watchdogs.explain_deadman(self._operator, now)
        return parts.targets.missing_input(wanted) or released or stale or parts.watchdogs.explain(wanted)

    def _check_deadman(self, now: float) -> None:
        """Enter hold if the robot moves and the dead man's switch is released."""
        if self._parts is None or self.mode not in MOVING:
            return
        if released := self._parts.watchdogs.explain_deadman(self._operator, now):
            self._enter_hold(released)

    @staticmethod
    def _is_measured(parts: CoreParts, measured: Vector) -> bool:
        return bool(np.isfinite(measured[np.array(parts.settings.measured)]).all())

    @staticmethod
    def _keep_measured(parts: CoreParts, measured: Vector) -> Vector:
        return np.where(parts.settings.measured, measured, np.nan)

    def _get_parts(self) -> CoreParts:
        if self._parts is None:
            raise UserError(f"The robot is {self.state}: configure it first.", code="core-not-configured")
        return self._parts

    def _read_clock(self) -> float:
        """Read the clock once per call; the executor sees the same time."""
        self._now = self._clock()
        return self._now
