"""Replay of a demonstration: the recorded actions at their recorded times, behind the safety filter.

Shapes: `T` recorded steps, `A` action entries.
"""

import io
import lzma
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limits import CommandLimits
from embodied_rl.deployment.execution.tick import Mode, MotionStep
from embodied_rl.interfaces.description import SI
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.robot import Body
from embodied_rl.system.untrusted_files import DAMAGED_ARRAY

ABOUT = ("action_names", "state_names", "action_low", "action_high", "control_hz", "state_units")
"""Entries of an episode's file that describe the robot."""
_ROUNDING_S = 1e-6
"""Largest time by which a tick may precede its step because of rounding."""
LONGEST_GAP_S = 0.25
"""Longest gap between two ticks; a replay with a longer one is aborted, because actions were skipped."""
MOST_STEPS, MOST_BYTES = 1_000_000, 2**28
_DAMAGED = (
    *DAMAGED_ARRAY, KeyError, EOFError, OverflowError, zipfile.BadZipFile, zlib.error, struct.error, lzma.LZMAError,
)  # fmt: skip
"""Exceptions of reading an arbitrary file as a .npz archive."""


@dataclass(frozen=True)
class Demonstration:
    """Recorded episode.

    Attributes:
        times: float64 [T + 1], seconds at which each step began and the last one ended; from 0, increasing.
        actions: float64 [T, A], executed, in the policy's units.
        measured: float64 [T, A], the measured q when a step began; NaN for entries that are not measured.

    Raises:
        UserError: shapes do not agree, times do not increase, or an action is not finite.
    """

    times: NDArray[np.float64]
    actions: NDArray[np.float64]
    measured: NDArray[np.float64]

    def __post_init__(self) -> None:
        steps, problem = len(self.actions), ""
        if not 1 <= steps <= MOST_STEPS or self.actions.ndim != 2 or self.measured.shape != self.actions.shape:
            problem = f"has actions {self.actions.shape}, measurements {self.measured.shape}"
        elif self.times.shape != (steps + 1,) or self.times[0] != 0 or not (np.diff(self.times) > 0).all():
            problem = "has times that do not increase from 0"
        elif not (np.isfinite(self.actions).all() and np.isfinite(self.times).all()):
            problem = "has an action or a time that is not a finite number"
        if problem:
            raise UserError(f"a demonstration {problem}.", code="demonstration-invalid")


def read_demonstration(path: Path, body: Body, measured_by: tuple[int, ...]) -> Demonstration:
    """Read an episode of `embodied-rl collect` (.npz); its steps last one period of `control_hz`.

    Args:
        path: of the file, which is not trusted. body: of the robot that replays it.
        measured_by: for each of the A entries, the index of the state entry that measures it in q; -1 for none.

    Raises:
        UserError: the file is missing, is not such an episode, or is of another robot.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a file")  # a pipe would be waited for
        with zipfile.ZipFile(path) as packed:
            actions, state = (_read_numbers(packed, name) for name in ("actions", "state"))
            recorded = _read_body(packed)
    except _DAMAGED as error:
        raise UserError(
            f"{path} cannot be read as an episode of collect: {str(error)[:200]!r}.", code="demonstration-damaged"
        ) from None
    if recorded is None:
        raise UserError(
            f"{path} does not name its robot, because an earlier version wrote it. Collect the episode again.",
            code="demonstration-without-robot",
        )
    check_recorded_body(recorded, body, str(path))
    sizes = (len(actions), len(body.action_names)), (len(actions), len(body.state_names))
    if (actions.shape, state.shape) != sizes:
        raise UserError(
            f"{path}: actions {list(actions.shape)} and state {list(state.shape)} do not fit {len(body.action_names)} "
            f"action and {len(body.state_names)} state entries.",
            code="demonstration-damaged",
        )
    return make_demonstration(np.arange(len(actions) + 1) / body.control_hz, actions, state, measured_by)


def make_demonstration(
    times: NDArray[np.float64], actions: NDArray[np.float64], state: NDArray[np.float64], measured_by: tuple[int, ...]
) -> Demonstration:
    """Return a demonstration of times [T + 1], actions [T, A] and state [T, S]; see `read_demonstration`."""
    columns = [state[:, entry] if entry >= 0 else np.full(len(state), math.nan) for entry in measured_by]
    if not all(np.isfinite(column).all() for column, entry in zip(columns, measured_by, strict=True) if entry >= 0):
        raise UserError(
            "a demonstration holds a measurement that is not a finite number.", code="demonstration-invalid"
        )
    return Demonstration(times, actions, np.stack(columns, axis=1))


def check_recorded_body(recorded: Body, body: Body, where: str) -> None:
    """Raise `UserError` if a recording's actions and state are not those of a robot; cameras are not compared."""
    for name in ("action_names", "state_names", "action_low", "action_high", "control_hz"):
        if (theirs := getattr(recorded, name)) != (ours := getattr(body, name)):
            raise UserError(
                f"{where} is of another robot: {name} {theirs!r:.200} there, {ours!r:.200} here. Choose a "
                "demonstration of this robot, or the robot's file that it was recorded with.",
                code="demonstration-of-another-robot",
            )


def _read_body(packed: zipfile.ZipFile) -> Body | None:
    """Return the robot of an episode's actions and state; None: the episode does not name it."""
    if f"{ABOUT[0]}.npy" not in packed.namelist():
        return None
    actions, states = (tuple(map(str, _read_array(packed, name, "U").tolist())) for name in ABOUT[:2])
    low, high = (tuple(_read_numbers(packed, name).tolist()) for name in ABOUT[2:4])
    if (units := str(_read_array(packed, ABOUT[5], "U"))) != SI:
        raise ValueError(f"its state is in {units[:20]}, and {SI} is needed")
    return Body({}, states, actions, low, high, float(_read_numbers(packed, ABOUT[4])))


def _read_numbers(packed: zipfile.ZipFile, name: str) -> NDArray[np.float64]:
    return _read_array(packed, name, "biuf").astype(np.float64)


def _read_array(packed: zipfile.ZipFile, name: str, kinds: str) -> NDArray[Any]:
    size = packed.getinfo(f"{name}.npy").file_size  # a larger array is not unpacked
    if size > MOST_BYTES:
        raise ValueError(f"{name} has {size} bytes, and {MOST_BYTES} are the most")
    with packed.open(f"{name}.npy") as file:
        found = np.lib.format.read_array(io.BytesIO(file.read()), allow_pickle=False)
    if found.dtype.kind not in kinds:
        raise ValueError(f"{name} does not hold {'strings' if kinds == 'U' else 'numbers'}")
    return found


class Replay:
    """Replay of a demonstration; a `embodied_rl.deployment.execution.tick.Motion`.

    Args:
        demonstration: to replay. limits: of the robot, with the kinds of the entries.
        tracking_error: [A], distance from the recorded position at which the replay is aborted.
        start_error: [A], largest distance from the recorded start at which the replay starts.
        period_s: of a tick; a target position is that at a tick's end, so that a step's last tick commands its action.
        name: of the recording, for messages.
    """

    mode = Mode.REPLAY

    def __init__(
        self,
        demonstration: Demonstration,
        limits: CommandLimits,
        tracking_error: tuple[float, ...],
        start_error: tuple[float, ...],
        period_s: float,
        name: str = "a demonstration",
    ) -> None:
        if demonstration.actions.shape[1] != len(limits.entries):
            raise UserError(
                f"{name} has {demonstration.actions.shape[1]} action entries, not {len(limits.entries)}.",
                code="demonstration-of-another-robot",
            )
        self.words = f"replay {name}, {demonstration.times[-1]:.1f} s"
        self._demonstration, self._limits, self._period = demonstration, limits, period_s
        self._tracking, self._start_error = np.array(tracking_error), np.array(start_error)
        self._kinds = np.array([entry.kind for entry in limits.entries])
        self._since = self._last = 0.0  # times of the start and of the last tick
        self._from = np.zeros(len(limits.entries))

    def begin(self, measured: NDArray[np.float64], commanded: NDArray[np.float64], now_s: float) -> str:
        self._since = self._last = now_s
        self._from = np.array(commanded, np.float64)
        return self._compare(
            self._demonstration.measured[0], measured, self._start_error, "is away from the recorded start by"
        )

    def step(self, measured: NDArray[np.float64], now_s: float) -> MotionStep:
        passed, gap = now_s - self._since, now_s - self._last
        self._last = now_s
        if not 0 <= gap <= max(LONGEST_GAP_S, 2 * self._period):
            return MotionStep(None, failed=f"time jumped by {gap:.3g} s")
        times, actions, places = self._demonstration.times, self._demonstration.actions, self._demonstration.measured
        step = int(np.searchsorted(times, passed + _ROUNDING_S, "right")) - 1
        if step >= len(actions):
            return MotionStep(None, done=True)
        lasts, now = times[step + 1] - times[step], places[step]
        # the last step continues the motion of the one before
        after = places[step + 1] if step < len(places) - 1 else 2 * now - places[max(step - 1, 0)]
        recorded = now + min(max((passed - times[step]) / lasts, 0.0), 1.0) * (after - now)
        if away := self._compare(recorded, measured, self._tracking, "left the recording by"):
            return MotionStep(None, failed=f"step {step}: {away}")
        action, before = actions[step], actions[step - 1] if step else self._from
        share = min(max((passed + self._period - times[step]) / lasts, 0.0), 1.0)
        position = action if share > 1 - _ROUNDING_S / lasts else before + share * (action - before)
        speed = np.where(self._kinds == "velocity", action, action / lasts)
        return MotionStep(np.where(self._kinds == "position", position, speed))

    def _compare(
        self, expected: NDArray[np.float64], measured: NDArray[np.float64], most: NDArray[np.float64], what: str
    ) -> str:
        """Return which entry is farther than `most` [A] from the expected position; empty for none."""
        away = np.abs(np.nan_to_num(expected - measured))
        if (away <= most).all():
            return ""
        worst = int(np.argmax(away / most))
        return f"'{self._limits.entries[worst].name}' {what} {away[worst]:.3g}, more than {most[worst]:.3g}"
