"""The settings of the deployment core. Shapes: `A` action entries. Times are in seconds, speeds in an entry's unit."""

import math
from dataclasses import dataclass

from embodied_rl.deployment.execution.limits import CommandLimits
from embodied_rl.deployment.execution.settings import Settings
from embodied_rl.interfaces.errors import UserError

OVERRUN_S = 0.1
"""A control loop that sleeps for longer was stopped, or has a machine that is too slow."""


@dataclass(frozen=True)
class StreamRule:
    """When a topic is stale.

    Attributes:
        name: of the topic. max_age_s: a message that is older, or whose content has been the same for longer, is stale.
        may_repeat: equal contents are no sign of a dead sensor, such as joints that stand still without noise.
        measures: the measured entries come from it. What does not measure, such as a camera, is needed by the policy
            and by a replay alone: a human may drive a robot home whose camera died.
        sees: it is a camera: where equal contents are no sign by themselves, they are one after the robot moved.
        pauses: its publisher's clock may pause, as that of a simulation: after a pause the estimate of it begins anew.
    """

    name: str
    max_age_s: float
    may_repeat: bool = False
    measures: bool = False
    sees: bool = False
    pauses: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.max_age_s) and self.max_age_s > 0):
            raise UserError(f"{self.name}: max_age_s={self.max_age_s} must be above 0.")


@dataclass(frozen=True)
class CoreSettings:
    """What the core knows of a robot and its operator.

    Attributes:
        limits: of the A entries, which the safety filter holds.
        control_hz: actions of the policy per second. command_hz: ticks per second, a multiple of it.
        streams: topics that must be fresh.
        measured: [A], whether something measures this entry. keeps: [A], holding still repeats its last command.
        tracking_error: [A], largest difference between commanded and measured motion, see `TrackingWatch`; `inf`: they
            are not compared.
        deadman_s: the dead man's switch is released when nobody has said for so long that it is held; None: the robot
            has none.
        teleop_s: a human's command holds for so long. blend_s: a takeover blends for at least so long.
        settle_s: what stopped the robot must be well again for so long before it moves.
        overrun_s: a tick that comes so long after the one before is an overrun; at least three periods are allowed.
        lost_s: a robot that is given no command for longer has come to rest by itself, so that commands begin again at
            the measured place; None: it goes on as it was told.
        silence_s: the plan is dropped when a request is unanswered for so long; None: the executor's own budget alone.
        approach: share of the largest speed at which a takeover draws the robot to where the human's command is.
        visible: share of an entry's box; a robot that moved so far must have changed what its cameras see.
        probe: compare small commanded and measured motions before anything else moves the robot, see `MotionProbe`.
        material: share of the range of the policy's action; a step that the filter changed by more is `Source.SAFETY`.

    Raises:
        UserError: rates or lengths do not fit, a number that cannot be, or a speed whose box nothing watches.
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
                raise UserError(f"{name}={getattr(self, name)} must be above 0.")
        self._check_lengths()
        if self.ticks < 1 or not math.isclose(self.ticks * self.control_hz, self.command_hz, rel_tol=1e-9):
            said = f"command_hz={self.command_hz:g} must be a multiple of control_hz={self.control_hz:g}"
            raise UserError(f"{said}, such as {max(1, self.ticks) * self.control_hz:g}.")
        if self.lost_s is not None and not self.lost_s > self.period_s:
            raise UserError(
                f"lost_s={self.lost_s:g}: the robot would stop between two commands, which come every "
                f"{self.period_s:g} s. Give it a longer timeout, or a higher command_hz."
            )
        if any(self.measured) and not any(each.measures for each in self.streams):
            raise UserError("streams: none of them measures, and entries are measured. Say which topic measures.")
        repeated = {each.name for each in self.streams if [one.name for one in self.streams].count(each.name) > 1}
        if repeated:
            raise UserError(f"streams: {', '.join(sorted(repeated))} stands there twice. Name each topic once.")

    def _check_lengths(self) -> None:
        count = len(self.limits.entries)
        for name in ("measured", "keeps", "tracking_error"):
            if len(getattr(self, name)) != count:
                raise UserError(f"{name} has {len(getattr(self, name))} entries, and the robot's action {count}.")
        for entry, error in zip(self.limits.entries, self.tracking_error, strict=True):
            if not error > 0:
                raise UserError(f"{entry.name}: tracking_error={error} must be above 0; .inf for none.")
        for entry, measured in zip(self.limits.entries, self.measured, strict=True):
            boxed = math.isfinite(entry.low) or math.isfinite(entry.high)
            if entry.kind != "position" and boxed and not measured:
                said = f"{entry.name} is moved by its speed within a box {entry.low:g}…{entry.high:g}"
                raise UserError(
                    f"{said}, and nothing measures where it is. Name the state entry that does, or give it no box."
                )

    def check_policy(self, policy: Settings) -> None:
        """Check that a policy is for this robot.

        Raises:
            UserError: another number of entries, or another rate.
        """
        count, wanted = len(policy.action_low), len(self.limits.entries)
        if count != wanted:
            raise UserError(f"The policy's actions have {count} entries, and the robot's {wanted}.")
        if not math.isclose(policy.control_hz, self.control_hz, rel_tol=1e-9):
            said = f"The policy acts at control_hz={policy.control_hz:g}, and the robot at {self.control_hz:g}"
            raise UserError(f"{said}. Give both the rate of the policy's training.")

    @property
    def ticks(self) -> int:
        """Return how many ticks a control step has."""
        return round(self.command_hz / self.control_hz)

    @property
    def period_s(self) -> float:
        return 1 / self.command_hz

    @property
    def longest_tick_s(self) -> float:
        """Return after how long a tick is an overrun."""
        return max(self.overrun_s, 3 * self.period_s)
