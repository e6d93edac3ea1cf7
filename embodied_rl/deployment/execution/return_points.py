"""Return points: poses from which a robot retries tasks that often fail, and the motion to them.

The idea is "return and explore" of VLAC (arXiv 2509.15937). A JSON file holds the points, next to a folder of images:

    {"format": "embodied_rl return points", "version": 1, "robot": "tabletop", "entries": ["move_x", …],
     "points": [{"name": "over the bowl", "task": "put the cube into the bowl", "pose": [0.48, 0.0, null],
                 "picture": "over_the_bowl.png", "tries": 4, "failures": 3}, …]}

`pose` is in the quantities of the action's entries, as in `EntryLimits`; null does not move an entry. The file is not
trusted: every field is checked.
"""

import json
import math
import stat
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.deployment.execution.limits import CommandLimits
from embodied_rl.deployment.execution.tick import Mode, MotionStep
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import write_text

FORMAT, VERSION = "embodied_rl return points", 1
_PEAKS = (("speed", 1.875, 1), ("acceleration", 5.774, 2), ("jerk", 60.0, 3))
MOST_POINTS, MOST_BYTES, MOST_TEXT = 10_000, 16 * 2**20, 500


@dataclass(frozen=True)
class ReturnPoint:
    """Return point: a pose from which a task is tried.

    Attributes:
        name: unique in its file. task: the task's instruction; empty for all tasks.
        pose: [A] in q, None for entries that are not moved.
        picture: image of the robot's view there, a path below the file's folder; empty if there is none.
        tries, failures: number of episodes that began here, and of failed ones.
    """

    name: str
    task: str
    pose: tuple[float | None, ...]
    picture: str = ""
    tries: int = 0
    failures: int = 0

    @property
    def failure_rate(self) -> float:
        """Return (failures + 1) / (tries + 2), the rule of succession: ½ for a point that was never tried."""
        return (self.failures + 1) / (self.tries + 2)


@dataclass(frozen=True)
class ReturnPoints:
    """Return points of one robot; `entries` are the names of its action's entries. Changes return a new object."""

    robot: str
    entries: tuple[str, ...]
    points: tuple[ReturnPoint, ...] = ()

    def find(self, name: str) -> ReturnPoint:
        """Return a point by its name; raise `UserError` if there is none."""
        for point in self.points:
            if point.name == name:
                return point
        known = ", ".join(point.name for point in self.points[:24]) or "none"
        raise UserError(f"there is no return point '{name}'. There are: {known}.", code="return-point-unknown")

    def add(self, point: ReturnPoint) -> "ReturnPoints":
        """Return the points with another one; raise `UserError` if the name is taken, or there are too many."""
        if len(self.points) >= MOST_POINTS:
            raise UserError(
                f"there are {MOST_POINTS} return points already, and no more can be kept. Remove some.",
                code="return-points-too-many",
            )
        if any(each.name == point.name for each in self.points):
            raise UserError(
                f"there is a return point '{point.name}' already. Give the new one another name.",
                code="return-point-twice",
            )
        return replace(self, points=(*self.points, point))

    def count(self, name: str, failed: bool) -> "ReturnPoints":
        """Return the points with one more episode that began at one of them."""
        old = self.find(name)
        new = replace(old, tries=old.tries + 1, failures=old.failures + failed)
        return replace(self, points=tuple(new if each is old else each for each in self.points))

    def select(self, words: str) -> "ReturnPoints":
        """Return the points of a task, by its instruction, and those without one; raise `UserError` for none."""
        chosen = tuple(point for point in self.points if point.task in ("", words))
        if not chosen:
            tasks = ", ".join(sorted({point.task for point in self.points})[:24])
            known = f"they are of: {tasks}" if tasks else "there are none yet"
            raise UserError(
                f"robot '{self.robot}' has no return point of the task '{words}', {known}. Store one first.",
                code="return-point-missing",
            )
        return replace(self, points=chosen)

    def compute_weights(self, sharpness: float = 1.0) -> NDArray[np.float64]:
        """Return the probabilities [points]: p_i = r_i^sharpness / Σ_j r_j^sharpness, with r_i the failure rate."""
        rates = np.array([point.failure_rate for point in self.points]) ** sharpness
        return rates / rates.sum()

    def choose(self, seed: int, number: int, sharpness: float = 1.0) -> ReturnPoint:
        """Sample the `number`-th point; the same seed, number and counts give the same point."""
        if not self.points:
            raise UserError(f"robot '{self.robot}' has no return points. Store one first.", code="return-point-missing")
        random = np.random.default_rng([seed, number])
        return self.points[int(random.choice(len(self.points), p=self.compute_weights(sharpness)))]


def make_return_point(name: str, task: str, pose: Sequence[float | None], limits: CommandLimits) -> ReturnPoint:
    """Return a point without tries; raise `UserError` if it could not be read back."""
    said = {"name": name, "task": task, "pose": list(pose), "picture": "", "tries": 0, "failures": 0}
    return _read_point(said, limits, name)


def save_return_points(points: ReturnPoints, path: Path, key: str = "return_points") -> None:
    """Write the points atomically; raise `UserError` if they cannot be written. `key` is the setting of the path."""
    text = json.dumps({"format": FORMAT, "version": VERSION, **asdict(points)}, indent=1, allow_nan=False)
    if len(text) > MOST_BYTES:
        raise UserError(
            f"{path} would be larger than {MOST_BYTES >> 20} MiB. Remove some return points.",
            code="return-points-too-many",
        )
    write_text(path, text + "\n", key)


def load_return_points(path: Path, robot: str, limits: CommandLimits) -> ReturnPoints:
    """Read the points of a robot.

    Raises:
        UserError: the file is missing, damaged, or of another robot, or a point lies outside its box.
    """
    try:
        if not stat.S_ISREG((found := path.stat()).st_mode):
            raise OSError("it is not a file")  # a pipe would be waited for
        if found.st_size > MOST_BYTES:
            raise UserError(
                f"{path} is larger than {MOST_BYTES >> 20} MiB: not a file of return points.",
                code="return-points-damaged",
            )
        said = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} cannot be read as return points: {str(error)[:200]}.", code="return-points-damaged"
        ) from None
    names = tuple(entry.name for entry in limits.entries)
    _check_keys(said, ("format", "version", "robot", "entries", "points"), f"{path}")
    for key, wanted in (("format", FORMAT), ("version", VERSION), ("robot", robot), ("entries", list(names))):
        if said[key] != wanted:
            raise UserError(
                f"{path}: {key} is {said[key]!r:.80}, and {wanted!r:.80} is needed here.",
                code="return-points-of-another-robot" if key in ("robot", "entries") else "return-points-damaged",
            )
    if not isinstance(said["points"], list) or len(said["points"]) > MOST_POINTS:
        raise UserError(f"{path}: points must be a list of at most {MOST_POINTS}.", code="return-points-damaged")
    read = ReturnPoints(robot, names)
    points = [_read_point(each, limits, f"{path}: point {number}") for number, each in enumerate(said["points"])]
    taken = [point.name for point in points]
    if len(set(taken)) < len(taken):
        double = next(name for name, count in Counter(taken).items() if count > 1)
        raise UserError(f"{path}: two points are called {double!r:.80}. Rename one.", code="return-point-twice")
    return replace(read, points=tuple(points))


def _read_point(said: Any, limits: CommandLimits, where: str) -> ReturnPoint:
    def invalid(message: str) -> UserError:
        return UserError(f"{where}: {message}", code="return-point-invalid")

    _check_keys(said, ("name", "task", "pose", "picture", "tries", "failures"), where)
    for key in ("name", "task", "picture"):
        text = said[key]
        if not isinstance(text, str) or len(text) > MOST_TEXT or not text.isprintable() or (key == "name" and not text):
            raise invalid(f"{key} must be one line of printable text, {MOST_TEXT} characters at most.")
    tries, failures = said["tries"], said["failures"]
    if not (type(tries) is int and type(failures) is int and 0 <= failures <= tries < 2**53):
        raise invalid(f"failures={failures!r:.80} of tries={tries!r:.80} must be counts, 0 or more.")
    picture, pose = said["picture"], said["pose"]
    path = PurePosixPath(picture)
    if path.is_absolute() or ".." in path.parts or "\\" in picture or ":" in picture:
        raise invalid(f"picture={picture!r:.80} must be a path below the file's own folder.")
    if not isinstance(pose, list) or len(pose) != len(limits.entries):
        raise invalid(f"pose must be a list of {len(limits.entries)} numbers or null.")
    for value, entry in zip(pose, limits.entries, strict=True):
        if value is None:
            continue
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:  # of an int of any size, too
            raise invalid(f"pose of '{entry.name}' is {value!r:.80}, not a number.")
        if not entry.low <= value <= entry.high:
            raise invalid(f"pose of '{entry.name}' is {value}, outside of its {entry.low}…{entry.high}.")
    places = tuple(None if value is None else float(value) for value in pose)
    return ReturnPoint(said["name"], said["task"], places, picture, tries, failures)


def _check_keys(said: Any, keys: Sequence[str], where: str) -> None:
    if not isinstance(said, Mapping):
        raise UserError(f"{where} is not a mapping with the keys {', '.join(keys)}.", code="return-points-damaged")
    if unknown := [str(key) for key in said if key not in keys]:
        raise UserError(f"{where}: unknown key {unknown[0]!r:.80}. Known: {', '.join(keys)}.", code="key-unused")
    if missing := [key for key in keys if key not in said]:
        raise UserError(f"{where}: {missing[0]} is missing.", code="key-missing")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


@dataclass(frozen=True)
class ReturnSettings:
    """Settings of the motion to a return point.

    Attributes:
        tolerance: [A], largest distance of every measured entry from the point at arrival, in q.
        tracking_error: [A], distance of an entry from the line at which the motion is aborted; `inf` for never.
        share: of the limits that the line uses, above 0, 1 at most.
        gain: speed per distance from the line, in 1/s.
        settle_s: longest time after T until arrival.
    """

    tolerance: tuple[float, ...]
    tracking_error: tuple[float, ...]
    share: float = 0.5
    gain: float = 4.0
    settle_s: float = 3.0


def choose_distances(limits: CommandLimits, tracking_error: Sequence[float], share: float) -> tuple[float, ...]:
    """Return [A]: the robot's tracking error where it is finite, else a share of the entry's box."""
    boxes = [entry.high - entry.low for entry in limits.entries]
    return tuple(
        error if math.isfinite(error) else share * box for error, box in zip(tracking_error, boxes, strict=True)
    )


class ReturnMotion:
    """Motion to a return point, a `Motion`: a straight minimum-jerk line in the quantities of the action's entries.

    The line lasts T, so that no entry exceeds a share of its limits: for a distance D the largest speed is 1.875 D/T,
    the largest acceleration 5.774 D/T², the largest jerk 60 D/T³ (Flash and Hogan, 1985). Entries that are commanded a
    speed get the line's speed plus a feedback term on the distance from the line. `arrived`: it ended at the point.
    """

    mode = Mode.RETURN

    def __init__(self, point: ReturnPoint, limits: CommandLimits, settings: ReturnSettings) -> None:
        self.point, self._limits, self._settings = point, limits, settings
        self.words = f"go to the return point '{point.name}' ({point.failures} of {point.tries} tries failed there)"
        self.arrived = False
        self._position = np.array([entry.kind == "position" for entry in limits.entries])
        self._given = np.array([value is not None for value in point.pose])
        self._target = np.array([math.nan if value is None else value for value in point.pose])
        self._start = np.zeros(len(point.pose))
        self._since = self._duration = 0.0
        self._at_end = False

    def begin(self, measured: NDArray[np.float64], commanded: NDArray[np.float64], now_s: float) -> str:
        unmeasured = self._given & ~self._position & np.isnan(measured)
        if unmeasured.any():
            name = self._limits.entries[int(np.argmax(unmeasured))].name
            return f"'{name}' is moved by its speed, and its position is not measured"
        self._start = np.where(self._position, commanded, np.nan_to_num(measured))
        self._target = np.where(self._given, self._target, self._start)
        self._since, self._duration, self._at_end, self.arrived = now_s, 0.0, False, False
        for limit, peak, order in _PEAKS:  # the shortest duration within the share of every limit
            most = self._settings.share * np.array(self._limits.list_values(limit))
            lasts = (peak * np.abs(self._target - self._start) / most) ** (1 / order)
            self._duration = max(self._duration, float(lasts.max()))
        return ""

    def step(self, measured: NDArray[np.float64], now_s: float) -> MotionStep:
        passed, settings = now_s - self._since, self._settings
        x = min(max(passed / self._duration, 0.0), 1.0) if self._duration else 1.0
        share, rate = x**3 * (10 - 15 * x + 6 * x**2), 30 * x**2 * (1 - x) ** 2
        way = self._target - self._start
        place, speed = self._start + share * way, way * (rate / self._duration if self._duration else 0.0)
        away = np.abs(np.where(self._given & ~np.isnan(measured), place - measured, 0))
        if (away > settings.tracking_error).any():
            return MotionStep(None, failed=self._explain("left the line by", away, int(np.argmax(away))))
        left = np.where(self._given & ~np.isnan(measured), np.abs(self._target - measured), 0)
        if self._at_end:  # the end was commanded once, which counts for entries that are not measured
            if (left <= settings.tolerance).all():
                self.arrived = True
                return MotionStep(None, done=True)
            if passed > self._duration + settings.settle_s:
                worst = int(np.argmax(left - np.array(settings.tolerance)))
                return MotionStep(None, failed=self._explain("did not arrive, and is away by", left, worst))
        self._at_end = passed >= self._duration
        back = settings.gain * np.where(np.isnan(measured), 0, place - measured)
        return MotionStep(np.where(self._position, place, np.where(self._given, speed + back, 0)))

    def _explain(self, what: str, distance: NDArray[np.float64], entry: int) -> str:
        return f"'{self._limits.entries[entry].name}' {what} {distance[entry]:.3g}"
