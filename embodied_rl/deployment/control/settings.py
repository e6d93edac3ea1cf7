"""The settings of the deployment core. Shapes: `A` action entries. Times are in seconds, speeds in an entry's unit."""

import math
from dataclasses import dataclass

from embodied_rl.deployment.execution.limits import CommandLimits
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.interfaces.errors import UserError

OVERRUN_S = 0.1
"""A control loop with a longer gap was stopped, or its machine is too slow."""


@dataclass(frozen=True)
class StreamRule:
    """Rule for the freshness of one topic.

    Attributes:
        name: of the topic.
        max_age_s: the topic is stale when its last message is older, or its content has been the same for longer.
        may_repeat: equal contents do not mean a dead sensor, as for joints at rest without noise.
        measures: the measured entries come from it. Other topics, such as cameras, are needed by the policy and by a
            replay only: a human may drive a robot without a working camera.
        sees: it is a camera; if it `may_repeat`, equal contents mean a fault only after the robot moved.
        pauses: its publisher's clock may pause, as in simulation; the estimate of its offset restarts after a pause.

    Raises:
        UserError: max_age_s is not above 0.
    """

    name: str
    max_age_s: float
    may_repeat: bool = False
    measures: bool = False
    sees: bool = False
    pauses: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.max_age_s) and self.max_age_s > 0):
            raise UserError(f"{self.name}: max_age_s={self.max_age_s} must be above 0.", code="value-out-of-range")


@dataclass(frozen=True)
class CoreSettings:
    """Settings of one robot and its operator.

    Attributes:
        limits: of the A entries, which the safety filter keeps.
        control_hz: actions of the policy per second. command_hz: ticks per second, a multiple of it.
        streams: topics that must be fresh.
        measured: [A], whether this entry is measured. keeps: [A], whether holding still repeats its last command.
        tracking_error: [A], largest difference between commanded and measured motion, see `TrackingWatch`; `inf`: they
            are not compared.
        deadman_s: timeout of the dead man's switch; None: the robot has none.
        teleop_s: timeout of a human's command. blend_s: shortest blend of a takeover.
        settle_s: the robot moves again when the cause of a hold has been absent for this time.
        overrun_s: a later tick is an overrun; at least three periods are allowed.
        lost_s: the robot's command timeout, after which it stops, so that commands restart at the measured position;
            None: it has none.
        silence_s: the plan is dropped when a request is unanswered for this time; None: only the executor's own budget
            counts.
        approach: share of the largest speed with which a takeover approaches the human's command.
        visible: share of an entry's box; a motion by more must change the camera images.
        probe: compare small commanded and measured motions before any other motion, see `MotionProbe`.
        material: share of the range of the policy's action; a step that the filter changed by more is `Source.SAFETY`.

    Raises:
        UserError: rates or lengths do not fit, an invalid number, or a speed with a box and no measurement.
    """

    limits: CommandLimits
    control_hz: float
    command_hz: float
    streams: tuple[StreamRule, ...]
    measured: tuple[bool, ...]
    keeps: tuple[bool, ...]
    tracking_error: tuple[float, ...]
    deadman_s: float | None = None
    teleop_s: float = 0.2
    blend_s: float = 0.5
    settle_s: float = 0.5
    overrun_s: float = OVERRUN_S
    lost_s: float | None = None
    silence_s: float | None = None
    approach: float = 0.25
    visible: float = 0.02
    probe: bool = False
    material: float = 0.1

    def __post_init__(self) -> None:
        for name in ("control_hz", "command_hz", "approach", "visible", "overrun_s", "blend_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise UserError(f"{name}={getattr(self, name)} must be above 0.", code="value-out-of-range")
        count = len(self.limits.entries)
        for name in ("measured", "keeps", "tracking_error"):
            if len(getattr(self, name)) != count:
                raise UserError(
                    f"{name} has {len(getattr(self, name))} entries, and the robot's action {count}.",
                    code="entries-mismatch",
                )
        for entry, error, measured in zip(self.limits.entries, self.tracking_error, self.measured, strict=True):
            if not error > 0:
                raise UserError(
                    f"{entry.name}: tracking_error={error} must be above 0; .inf for none.", code="value-out-of-range"
                )
            boxed = math.isfinite(entry.low) or math.isfinite(entry.high)
            if entry.kind != "position" and boxed and not measured:
                said = f"{entry.name} is moved by its speed within a box {entry.low:g}…{entry.high:g}"
                raise UserError(
                    f"{said}, and its position is not measured. Name the state entry that measures it, or give it no "
                    "box.",
                    code="entry-not-measured",
                )
        if self.ticks < 1 or not math.isclose(self.ticks * self.control_hz, self.command_hz, rel_tol=1e-9):
            said = f"command_hz={self.command_hz:g} must be a multiple of control_hz={self.control_hz:g}"
            raise UserError(f"{said}, such as {max(1, self.ticks) * self.control_hz:g}.", code="rates-not-multiples")
        if self.lost_s is not None and not self.lost_s > self.period_s:
            raise UserError(
                f"lost_s={self.lost_s:g}: the robot would stop between two commands, which come every "
                f"{self.period_s:g} s. Give it a longer timeout, or a higher command_hz.",
                code="command-timeout-too-short",
            )
        if any(self.measured) and not any(each.measures for each in self.streams):
            raise UserError(
                "streams: none of them measures, and entries are measured. Say which topic measures.",
                code="measuring-stream-missing",
            )
        repeated = {each.name for each in self.streams if [one.name for one in self.streams].count(each.name) > 1}
        if repeated:
            raise UserError(
                f"streams: {', '.join(sorted(repeated))} is there twice. Name each topic once.", code="stream-twice"
            )

    def check_policy(self, policy: Settings) -> None:
        """Raise `UserError` if a policy has another number of entries, or another rate."""
        count, wanted = len(policy.action_low), len(self.limits.entries)
        if count != wanted:
            raise UserError(
                f"The policy's actions have {count} entries, and the robot's {wanted}.", code="policy-robot-mismatch"
            )
        if not math.isclose(policy.control_hz, self.control_hz, rel_tol=1e-9):
            said = f"The policy acts at control_hz={policy.control_hz:g}, and the robot at {self.control_hz:g}"
            raise UserError(f"{said}. Give both the rate of the policy's training.", code="policy-robot-mismatch")

    @property
    def ticks(self) -> int:
        """Return the number of ticks in a control step."""
        return round(self.command_hz / self.control_hz)

    @property
    def period_s(self) -> float:
        return 1 / self.command_hz

    @property
    def longest_tick_s(self) -> float:
        """Return the longest time between two ticks that is not an overrun."""
        return max(self.overrun_s, 3 * self.period_s)
