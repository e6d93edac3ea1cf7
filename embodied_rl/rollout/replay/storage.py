"""The replay storage: the newest observations and decisions, each observation stored once, in memory or on disk.

Each environment has a track: a ring of rows in the order of time. A row is a decision and the observation it was made
on; the next observation is that of the next row of its track. docs/replay.md describes the format.

Shapes: B decisions of an episode, n environments of one call, Hx executed actions of a chunk, A action dimensions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
from torch import Tensor

from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, Source, StepResult
from embodied_rl.rollout.replay.format import REMEDY, FieldKind, ReplayError, ReplayFormat
from embodied_rl.rollout.replay.replay_files import TEXTS, Texts, make_folder, open_arrays, read_format, sync_files
from embodied_rl.rollout.replay.ring import Ring, Values
from embodied_rl.rollout.writer import Writer, select_outcome

PLAIN = (
    *("action", "executed", "reward", "success", "source", "steps", "terminated", "truncated"),
    *("version", "episode", "seed", "group", "task", "decision"),
)
"""The attributes of `Transitions` that are fields of a row."""
_EPISODE = ("episode", "seed", "initial_state", "group", "task", "split")


@dataclass
class Transitions:
    """B decisions and their results, read from a replay storage. All arrays are copies.

    For a discount γ per control step, a decision is worth Σ_{j < steps} γ^j reward_j, and the next value counts with
    γ^steps, or not at all where terminated. The attributes have the dtypes and shapes of docs/replay.md, with B rows.

    Attributes:
        action, executed: float32 [B, Hx, A] as chosen, and as applied after clipping, a safety filter or a human.
        truncated: bool [B]; never true where `terminated` is.
        next_observation: the episode's final one if truncated; unused if terminated (a copy of `observation`).
        extra: the extra fields of the format, [B, ...] each.
    """

    observation: Observation
    action: Array
    executed: Array
    reward: Array
    success: Array
    source: Array
    steps: Array
    terminated: Array
    truncated: Array
    next_observation: Observation
    version: Array
    episode: Array
    seed: Array
    group: Array
    task: Array
    decision: Array
    extra: dict[str, Array]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class StoredEpisode:
    """A whole episode of a replay storage.

    Attributes:
        track: where it lies. slots: int64 [B], of its decisions, in order.
        episode, seed, task: as in `Episode`.
        success: whether the goal held after its last control step.
    """

    track: int
    slots: Array
    episode: int
    seed: int
    task: int
    success: bool


class ReplayStorage(Writer):
    """A `Writer` that keeps the newest rows of each track, in memory or in a `folder`, which is created if missing.

    After construction, only the texts of new instructions are allocated. A complete row survives `kill -9`; after a
    power cut, the rows of the last `flush` are left. With `keep`, `load` and `clear` remove nothing, as for a robot,
    which cannot repeat what it did.

    Raises:
        ReplayError: the folder holds something else, is of another format or version, is damaged, or another process
            writes to it.
        StorageError: there is no room for the storage, or the folder cannot be written.
    """

    final_pictures = False

    def __init__(self, layout: ReplayFormat, folder: Path | None = None, keep: bool = False):
        if folder is not None:
            make_folder(folder, layout)
        self._keep = keep
        self._attach(layout, folder, write=True)

    @classmethod
    def open(cls, folder: Path) -> "ReplayStorage":
        """Open a storage for reading only, in its present state; not while another process writes to it.

        Raises:
            ReplayError: there is no storage, or it is damaged or of another version.
        """
        storage = cls.__new__(cls)
        storage._attach(read_format(folder), folder, write=False)
        return storage

    def _check_numbers(self, folder: Path) -> None:
        """Raise `ReplayError` if a row that can be read has a number out of its range, or one that is not finite."""
        usable = np.divmod(self._ring.usable(), self.format.slots)
        final = np.nonzero(self._arrays["kind"] == FieldKind.FINAL)
        texts, tasks, largest = len(self._texts) - 1, len(self.format.tasks) - 1, float(np.finfo(np.float32).max)
        floats = [name for name, each in self.format.fields.items() if np.dtype(each.dtype).kind == "f"]
        bounds = {"steps": (1, self.format.executed), "source": (0, max(Source)), "task": (0, tasks)}
        bounds |= dict.fromkeys(("instruction", "split"), (0, texts)) | dict.fromkeys(floats, (-largest, largest))
        for name, (low, high) in bounds.items():
            observed = name in ("state", "privileged", "instruction")  # the final observation has them, too
            for where in (usable, final) if observed else (usable,):
                found = self._arrays[name][where]
                if not ((found >= low) & (found <= high)).all():  # also where one is NaN
                    message = f"{folder}: a row has {name} outside of {low} … {high}; the storage is damaged. {REMEDY}"
                    raise ReplayError(message, code="replay-damaged")
        own = self._arrays["source"][usable] == Source.POLICY  # those of an operator may not be filtered
        self.format.check_executed(self._arrays["executed"][usable][own], str(folder))

    def _attach(self, layout: ReplayFormat, folder: Path | None, write: bool) -> None:
        self.format, self._folder, self._write = layout, folder, write
        self._texts = Texts(None if folder is None else folder / TEXTS, write)
        try:
            self._arrays = layout.allocate() if folder is None else open_arrays(folder, layout, write)
            self._ring = Ring(layout, self._arrays)
            if folder is not None:
                self._check_numbers(folder)
        except BaseException:
            self._texts.close()
            raise

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return len(self._ring.usable())

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays, on disk or in memory."""
        return self.format.nbytes

    def prepare(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Check that the format fits the environments and chunks; see `Writer`; raises `ReplayError`."""
        self.format.check_simulator(spec, num_envs, executed)

    def write_decision(
        self,
        row: Tensor | int,
        columns: Tensor,
        decision: Decision,
        episodes: list[Episode],
        observation: Observation,
        keys: NoiseKeys,
    ) -> None:
        """Begin a row in each of the tracks `columns`; see `Writer`. `row` is ignored."""
        self._check_write()
        chosen = {"action": decision.actions, "version": _array(decision.version), "decision": keys.decision}
        have = {"log_prob": decision.log_prob} | {f"trace/{name}": value for name, value in decision.trace.items()}
        extra = {name: _array(have[name]) for name in self.format.extra}
        values = self._observed(observation) | self._numbered(episodes) | chosen | extra
        tracks = columns.numpy()
        self._ring.append(tracks, self._ring.count[tracks], FieldKind.DECIDED, values)

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Complete the newest row of each of the tracks `columns`; where truncated, add the final observation."""
        self._check_write()
        tracks = columns.numpy()
        self._ring.complete(tracks, self._ring.count[tracks] - 1, self._played(result, rows))
        where = dict(zip(rows.tolist(), tracks.tolist(), strict=True))
        cut = [p for p, r in enumerate(result.ended) if result.truncated[r] and not result.terminated[r]]
        if cut:
            assert result.final_observation is not None
            ended = np.array([where[int(result.ended[position])] for position in cut])
            self._append_final(ended, result.final_observation.select(cut))

    def lose_episodes(self, row: int, columns: Tensor, first_rows: Array) -> None:
        """Mark all rows of the running episodes of the tracks `columns` as lost; see `Writer`. The rest is ignored."""
        self._check_write()
        for track in columns.tolist():
            self._ring.lose(track)

    def write_episode(
        self,
        track: int,
        episode: Episode,
        observation: Observation,
        actions: Array,
        result: StepResult,
        first_decision: int = 0,
    ) -> None:
        """Add an episode, such as a demonstration, or a part of one to the end of a track.

        Args:
            track, episode: where, and which.
            observation: B rows, one before each chunk.
            actions: float32 [B, Hx, A] as chosen.
            result: B rows. Its `observation` is not read. Where the last one is truncated, `final_observation` has one
                row; without it, the last decision cannot be sampled.
            first_decision: decisions of the episode that lie before the first one given.

        Raises:
            ReplayError: the episode is longer than the track.
        """
        self._check_write()
        length = len(actions)
        if length + 1 > self.format.capacity:
            message = f"replay: an episode of {length} decisions needs a capacity of {length + 1} at least"
            raise ReplayError(message, code="replay-too-small")
        tracks, numbers = np.full(length, track), self._ring.count[track] + np.arange(length)
        chosen: Values = {"action": actions, "version": -1, "decision": first_decision + np.arange(length)}
        values = self._observed(observation) | self._numbered([episode] * length) | chosen
        self._ring.append(tracks, numbers, FieldKind.DECIDED, values)
        self._ring.complete(tracks, numbers, self._played(result, np.arange(length)))
        if result.truncated[-1] and not result.terminated[-1] and result.final_observation is not None:
            self._append_final(tracks[:1], result.final_observation)

    def sample(self, count: int, rng: np.random.Generator) -> Transitions:
        """Draw `count` transitions uniformly and independently: a function of the rows and of `rng`'s state.

        Raises:
            ReplayError: no transition can be sampled yet.
        """
        usable = self._ring.usable()
        if not len(usable):
            message = "replay: nothing to sample from; a decision counts once its successor is known"
            raise ReplayError(message, code="replay-empty")
        return self._read(*np.divmod(usable[rng.integers(len(usable), size=count)], self.format.slots))

    def episodes(self) -> Iterator[Transitions]:
        """Yield the whole episodes, from their first decision to their end, track by track, oldest first.

        It leaves out episodes that still run, were lost, or have been overwritten in part.
        """
        for episode in self.list_episodes():
            yield self._read(np.full(len(episode.slots), episode.track), episode.slots)

    def checksum(self) -> int:
        """Return a checksum of the format and of every row's bookkeeping and results; not of what was seen."""
        names = sorted(name for name, field in self.format.fields.items() if not name.startswith("images/"))
        found = crc32(self.format.to_json().encode())
        for name in names:
            found = crc32(np.ascontiguousarray(self._arrays[name]).data, found)
        return found

    def read_text(self, number: int) -> str:
        """Return a text, such as an instruction, by the number that a field holds."""
        return self._texts[number]

    def list_instructions(self) -> list[str]:
        """Return the different instructions of all decisions that can be sampled."""
        numbers = np.unique(self._arrays["instruction"].reshape(-1)[self._ring.usable()])
        return [self._texts[int(number)] for number in numbers]

    def list_episodes(self) -> list[StoredEpisode]:
        """Return the episodes that `episodes` yields, without their content."""
        arrays, found = self._arrays, list[StoredEpisode]()
        for track in range(self.format.tracks):
            for slots in self._ring.whole_episodes(track):
                last = track, slots[-1]
                numbers = {name: int(arrays[name][last]) for name in ("episode", "seed", "task")}
                success = bool(arrays["success"][(*last, arrays["steps"][last] - 1)])
                found.append(StoredEpisode(track, slots, **numbers, success=success))
        return found

    def read_field(self, name: str, tracks: Array, slots: Array) -> Array:
        """Return a copy of a field of these rows, int64 [B] each."""
        return self._arrays[name][tracks, slots]

    def read_chunks(self, tracks: Array, slots: Array, length: int) -> tuple[Array, Array]:
        """Return the actions that were executed from these decisions on, also those of the following decisions.

        Args:
            tracks, slots: int64 [B], decisions that can be sampled.
            length: H, control steps.

        Returns:
            The executed actions, float32 [B, H, A], and their sources, uint8 [B, H]; 0 and HOLD after the end of the
            episode, or where what follows is unknown.
        """
        arrays, positions = self._arrays, np.arange(self.format.executed)
        actions = np.zeros((len(slots), length, len(self.format.action_names)), np.float32)
        sources = np.full((len(slots), length), Source.HOLD, np.uint8)
        filled, left = np.zeros(len(slots), np.int64), np.arange(len(slots))  # rows whose episode goes on
        while len(left):
            where = tracks[left], slots[left]
            target = filled[left, None] + positions
            used = (positions < arrays["steps"][where][:, None]) & (target < length)
            rows = np.nonzero(used)[0]
            actions[left[rows], target[used]] = arrays["executed"][where][used]
            sources[left[rows], target[used]] = arrays["source"][where][used]
            filled[left] += arrays["steps"][where]
            ended = arrays["terminated"][where] | arrays["truncated"][where]
            left = left[~ended & (filled[left] < length)]
            slots = self._ring.slots(slots + 1)
            left = left[self._ring.ready[tracks[left], slots[left]]]
        return actions, sources

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint holds of a storage on disk: the rows of each track, and whether the last is lost."""
        return {"replay/rows": self._ring.count.copy(), "replay/lost": self._ring.find_lost()}

    def load(self, state: dict[str, Array]) -> None:
        """Go back to a `state` of this storage by removing later rows, unless it keeps all; no decision may be pending.

        Where a track got more rows since than the format's `spare`, some older rows are gone, and a warning is logged.

        Raises:
            ReplayError: the storage has other tracks or fewer rows than the state, so it is another storage.
        """
        self._check_write()
        count, have = state["replay/rows"], self._ring.count
        if count.shape != have.shape or (count > have).any():
            raise ReplayError(
                f"replay: the checkpoint has tracks of {count.tolist()} rows, the storage has {have.tolist()}. "
                f"Continue with the replay folder that belongs to the checkpoint.",
                code="replay-checkpoint-mismatch",
            )
        if not self._keep:
            self._ring.rewind(count, state["replay/lost"])

    def clear(self) -> None:
        """Remove all rows, unless the storage keeps them."""
        self.load({name: np.zeros_like(value) for name, value in self.state().items()})

    def flush(self) -> None:
        """Flush all data to the disk, so that a power cut cannot lose it; no effect in memory."""
        if self._folder is not None:
            sync_files(self._folder, self.format)

    def close(self) -> None:
        """Stop writing, so that another process can write. Reading still works. Safe to call twice."""
        self._write = False
        self._texts.close()

    def _check_write(self) -> None:
        if not self._write:
            message = "replay: this storage was opened for reading only, or closed; ReplayStorage(…) writes"
            raise ReplayError(message, code="replay-read-only")

    def _append_final(self, tracks: Array, observation: Observation) -> None:
        last = self._ring.last(tracks)
        values: Values = {name: self._arrays[name][last] for name in _EPISODE}
        values |= {"decision": self._arrays["decision"][last] + 1} | self._observed(observation)
        self._ring.append(tracks, self._ring.count[tracks], FieldKind.FINAL, values)

    def _observed(self, observation: Observation) -> Values:
        values: Values = {f"images/{name}": observation.images[name] for name in self.format.cameras}
        if self.format.privileged_names and observation.privileged is not None:
            values["privileged"] = observation.privileged
        return values | {"state": observation.state, "instruction": self._numbers_of(observation.instruction)}

    def _numbered(self, episodes: list[Episode]) -> Values:
        initial = [-1 if episode.initial_state is None else episode.initial_state for episode in episodes]
        return {
            "episode": np.array([episode.index for episode in episodes], np.int64),
            "seed": np.array([episode.seed for episode in episodes], np.int64),
            "initial_state": np.array(initial, np.int64),
            "group": np.array([episode.group for episode in episodes], np.int64),
            "task": np.array([episode.task for episode in episodes], np.int64),
            "split": self._numbers_of([episode.split for episode in episodes]),
        }

    def _numbers_of(self, texts: list[str] | tuple[str, ...]) -> Array:
        return np.array([self._texts.number(text) for text in texts], np.int64)

    def _played(self, result: StepResult, rows: Array) -> Values:
        values = select_outcome(result, rows)
        unused = np.arange(self.format.executed) >= values["steps"][:, None]
        return {**values, "executed": np.where(unused[..., None], 0, result.executed[rows])}

    def _read(self, tracks: Array, slots: Array) -> Transitions:
        terminated = self._arrays["terminated"][tracks, slots]
        following = np.where(terminated, slots, self._ring.slots(slots + 1))
        return Transitions(
            observation=self.read_observation(tracks, slots),
            next_observation=self.read_observation(tracks, following),
            extra={name: self._arrays[name][tracks, slots] for name in self.format.extra},
            **{name: self._arrays[name][tracks, slots] for name in PLAIN},
        )

    def read_observation(self, tracks: Array, slots: Array) -> Observation:
        """Return copies of the observations in these rows, int64 [B] each."""
        arrays = self._arrays
        return Observation(
            images={name: arrays[f"images/{name}"][tracks, slots] for name in self.format.cameras},
            state=arrays["state"][tracks, slots],
            instruction=tuple(self._texts[int(number)] for number in arrays["instruction"][tracks, slots]),
            privileged=arrays["privileged"][tracks, slots] if self.format.privileged_names else None,
        )


def _array(values: Tensor) -> Array:
    return values.detach().cpu().numpy()
