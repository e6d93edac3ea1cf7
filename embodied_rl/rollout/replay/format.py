"""Format of a replay storage: its fields and their meaning; see docs/replay.md.

Shapes: Hx executed actions of a chunk, A action dimensions, S state dimensions, P privileged dimensions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum

import numpy as np

from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.system.untrusted_files import parse_json

NAME, VERSION = "embodied-rl replay", 1

_ROBOT = ("cameras", "state_names", "privileged_names", "action_names", "action_low", "action_high", "control_hz")
REMEDY = "Restore it from a copy, or give another folder."


class ReplayError(UserError):
    """A replay storage cannot be used; the message names it, the reason and a remedy."""


class FieldKind(IntEnum):
    """The kind of a row.

    Attributes:
        EMPTY: no data.
        DECIDED: an observation and the chunk chosen on it; the result is not known yet.
        COMPLETE: a decision and its result.
        FINAL: the last observation of a truncated episode; no action.
        LOST: a row of an episode whose worker died.
    """

    EMPTY = 0
    DECIDED = 1
    COMPLETE = 2
    FINAL = 3
    LOST = 4


@dataclass(frozen=True)
class ReplayField:
    """The shape and the NumPy dtype in letters, such as "<f4", of one number or array of each row."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ReplayFormat:
    """The format of a replay storage. Make one with `of_simulator`.

    Attributes:
        tracks: environments, each with its ring of rows.
        capacity: newest rows of a track that are read.
        spare: older rows that are kept, so that `ReplayStorage.load` can go back by as many rows and find the earlier
            content of the ring.
        executed: Hx; 1 for data in control steps.
        cameras: of the images, in the simulator's order.
        state_names, privileged_names, action_names, action_low, action_high, control_hz: as in `SimulatorSpec`.
        tasks: names of its tasks.
        fields: name → shape and dtype of the field in a row.
    """

    tracks: int
    capacity: int
    spare: int
    executed: int
    cameras: tuple[str, ...]
    state_names: tuple[str, ...]
    privileged_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_hz: float
    tasks: tuple[str, ...]
    fields: dict[str, ReplayField]

    @staticmethod
    def of_simulator(
        spec: SimulatorSpec,
        tracks: int,
        capacity: int,
        executed: int,
        *,
        cameras: Sequence[str] | None = None,
        extra: Mapping[str, ReplayField] | None = None,
        spare: int = 0,
    ) -> "ReplayFormat":
        """Return the format for a simulator's data.

        Args:
            tracks, capacity, executed, spare: see the attributes. For exact resume, `spare` is at least the rows a
                track gets between two checkpoints.
            cameras: names of the cameras to record; by default those of the policy.
            extra: further entries of a decision to keep: "log_prob", or "trace/<name>" for an entry of its trace.

        Raises:
            ReplayError: a camera or an extra is unknown, or a size is too small.
        """
        chosen = tuple(c.name for c in spec.cameras if (c.role == "policy" if cameras is None else c.name in cameras))
        if unknown := set(cameras or ()) - set(chosen):
            known = ", ".join(camera.name for camera in spec.cameras)
            message = f"replay: unknown camera '{min(unknown)}'; the simulator has {known}"
            raise ReplayError(message, code="camera-unknown")
        if min(tracks, executed) < 1 or capacity < 2 or spare < 0:
            raise ReplayError(
                f"replay: tracks and executed must be at least 1, capacity at least 2 and spare at least 0, "
                f"got {tracks}, {executed}, {capacity} and {spare}",
                code="replay-size-out-of-range",
            )
        if invalid := [name for name in extra or {} if not _is_extra(name)]:
            message = f"replay: unknown extra '{invalid[0]}'; there are 'log_prob' and 'trace/<name>'"
            raise ReplayError(message, code="replay-extra-unknown")
        return ReplayFormat(
            tracks=tracks,
            capacity=capacity,
            spare=spare,
            executed=executed,
            cameras=chosen,
            state_names=spec.state_names,
            privileged_names=spec.privileged_names,
            action_names=spec.action_names,
            action_low=tuple(map(float, spec.action_low)),
            action_high=tuple(map(float, spec.action_high)),
            control_hz=float(spec.control_hz),
            tasks=tuple(task.name for task in spec.tasks),
            fields={
                **{
                    f"images/{c.name}": ReplayField((c.height, c.width, 3), "|u1")
                    for c in spec.cameras
                    if c.name in chosen
                },
                **_make_fields(executed, spec.action_dim, len(spec.state_names), len(spec.privileged_names)),
                **{name: replace(each, dtype=np.dtype(each.dtype).str) for name, each in (extra or {}).items()},
            },
        )

    @property
    def action_dim(self) -> int:
        """Return A."""
        return len(self.action_names)

    @property
    def slots(self) -> int:
        """Return the number of rows that a track has room for."""
        return self.capacity + self.spare

    @property
    def extra(self) -> dict[str, ReplayField]:
        """Return the extra fields that `of_simulator` was given."""
        return {name: field for name, field in self.fields.items() if _is_extra(name)}

    def allocate(self) -> dict[str, Array]:
        """Allocate the arrays in memory, all zero."""
        return {name: np.zeros(self.shape(name), field.dtype) for name, field in self.fields.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a field's array: [tracks, slots, ...]."""
        return self.tracks, self.slots, *self.fields[name].shape

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays together."""
        return sum(int(np.prod(self.shape(name))) * np.dtype(f.dtype).itemsize for name, f in self.fields.items())

    def check_simulator(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Raise `ReplayError` unless this format fits `num_envs` environments of a simulator and chunks of Hx."""
        extra, cameras = self.extra, self.cameras
        wanted = ReplayFormat.of_simulator(
            spec, num_envs, self.capacity, executed, cameras=cameras, extra=extra, spare=self.spare
        )
        self.check(wanted, "the replay storage")

    def check(self, wanted: "ReplayFormat", where: str) -> None:
        """Raise `ReplayError` at the first difference from another format; `where` names the owner of this format."""
        found, asked = self._listed(), wanted._listed()
        for name in asked | found:
            have, want = found.get(name, "absent"), asked.get(name, "absent")
            if have != want:
                message = f"{where}: {name} is {have} there, and {want} here. {REMEDY}"
                raise ReplayError(message, code="replay-format-mismatch")

    def check_robot(self, wanted: "ReplayFormat", where: str) -> None:
        """Raise `ReplayError` at the first difference in cameras, state, actions or rate; see `check`.

        Privileged state may be absent in one of them, as in recordings of a robot, and the executed actions of a chunk
        may be more or fewer.
        """
        played = _make_fields(self.executed, wanted.action_dim, 0, 0).items()
        fields = wanted.fields | {name: field for name, field in played if name != "state"}
        resized = replace(wanted, executed=self.executed, fields=fields)
        either = self.privileged_names and wanted.privileged_names
        optional = set() if either else {"privileged", "privileged_names"}
        found, asked = self._listed(), resized._listed()
        compared = (*_ROBOT, *(name for name in asked if name.startswith("the field ")))
        for name in (name for name in compared if name.removeprefix("the field ").strip("'") not in optional):
            have, want = found.get(name, "absent"), asked.get(name, "absent")
            if have != want:
                message = f"{where}: {name} is {have} there, and {want} here. It is the experience of another robot."
                raise ReplayError(message, code="replay-format-mismatch")

    def check_executed(self, executed: Array, where: str) -> None:
        """Raise `ReplayError` if a policy's executed actions [n, A] lie further outside of the limits than these apart.

        A robot's safety filter may leave the limits by less, as where it begins outside of them.
        """
        low, high = np.array(self.action_low), np.array(self.action_high)
        rows, entries = np.nonzero((executed < 2 * low - high) | (executed > 2 * high - low))
        if len(rows):
            row, entry = rows[0], entries[0]
            raise ReplayError(
                f"{where}: a row has executed {self.action_names[entry]} = {executed[row, entry]:g}, far outside of "
                f"its limits {low[entry]:g} … {high[entry]:g}: it is damaged, or in other units. {REMEDY}",
                code="replay-damaged",
            )

    def _check_fields(self) -> None:
        """Raise ValueError unless fields and limits are those of the names, of the cameras and of the chunks."""
        if not len(self.action_low) == len(self.action_high) == self.action_dim:
            raise ValueError(
                f"{self.action_dim} actions have {len(self.action_low)} and {len(self.action_high)} limits"
            )
        expected = _make_fields(self.executed, self.action_dim, len(self.state_names), len(self.privileged_names))
        for name in expected | {f"images/{camera}": None for camera in self.cameras} | self.fields:
            found = self.fields.get(name, ReplayField((), "absent"))
            pictures = name.startswith("images/") and name.removeprefix("images/") in self.cameras
            fits = found.dtype == "|u1" and len(found.shape) == 3 and found.shape[2] == 3
            if not (fits if pictures else found == expected.get(name) or _is_extra(name)):
                raise ValueError(f"the field {name} is {found.dtype} {list(found.shape)}")

    def _listed(self) -> dict[str, object]:
        attributes = asdict(self)
        fields = attributes.pop("fields")
        return attributes | {f"the field '{name}'": field for name, field in fields.items()}

    def to_json(self) -> str:
        """Return the content of `format.json`."""
        return json.dumps({"format": NAME, "version": VERSION, **asdict(self)}, indent=1) + "\n"

    @staticmethod
    def from_json(text: str, where: str) -> "ReplayFormat":
        """Read a result of `to_json`; raise `ReplayError` for other content or another version."""
        found = parse_json(text, where, ReplayError)
        try:
            name, version = found.pop("format"), found.pop("version")
        except (KeyError, AttributeError, TypeError) as error:
            message = f"{where} does not describe a replay storage ({error!r}). {REMEDY}"
            raise ReplayError(message, code="replay-damaged") from error
        if (name, version) != (NAME, VERSION):
            raise ReplayError(
                f"{where} is version {version} of the format '{name}', and this program reads version {VERSION} of "
                f"'{NAME}'. Use the version of embodied-rl that wrote it, or give another folder.",
                code="replay-version-mismatch",
            )
        try:
            layout = freeze_config(ReplayFormat, found)
            if min(layout.tracks, layout.executed) < 1 or layout.capacity < 2 or layout.spare < 0:
                raise ValueError("a size is out of range")
            if layout.control_hz <= 0:
                raise ValueError(f"control_hz is {layout.control_hz}")
            layout._check_fields()
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ReplayError(f"{where} is damaged ({error!r}). {REMEDY}", code="replay-damaged") from error
        return layout


def _make_fields(executed: int, actions: int, states: int, privileged: int) -> dict[str, ReplayField]:
    """Return the fields that every storage has, but for pictures, by the numbers of entries."""
    numbers = ("row", "episode", "seed", "initial_state", "group", "task", "split", "decision", "version")
    return {
        **{name: ReplayField((), "<i8") for name in (*numbers, "instruction", "steps")},
        **{name: ReplayField((), "|b1") for name in ("terminated", "truncated")},
        **{name: ReplayField((executed, actions), "<f4") for name in ("action", "executed")},
        "kind": ReplayField((), "|u1"),
        "state": ReplayField((states,), "<f4"),
        **({"privileged": ReplayField((privileged,), "<f4")} if privileged else {}),
        "reward": ReplayField((executed,), "<f4"),
        "success": ReplayField((executed,), "|b1"),
        "source": ReplayField((executed,), "|u1"),
    }


def _is_extra(name: str) -> bool:
    return name == "log_prob" or name.startswith("trace/")
