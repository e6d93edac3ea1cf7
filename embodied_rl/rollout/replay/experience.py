"""The stored experience that an algorithm learns from: that of the run, and offline episodes.

Shapes: B decisions, H control steps of a chunk, A action dimensions.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec, Source
from embodied_rl.rollout.replay.format import ReplayError, ReplayField, ReplayFormat
from embodied_rl.rollout.replay.replay_files import FORMAT, check_not_written, is_dataset
from embodied_rl.rollout.replay.storage import ReplayStorage, StoredEpisode
from embodied_rl.rollout.writer import WriterFactory


def choose_episodes(storage: ReplayStorage, tasks: Collection[str] | None) -> list[StoredEpisode]:
    """Return the whole episodes of a storage that are of some tasks, given by name, or of all."""
    named = storage.format.tasks
    return [each for each in storage.list_episodes() if tasks is None or named[each.task] in tasks]


@dataclass(frozen=True)
class Replay:
    """The storages that an algorithm learns from.

    Attributes:
        own: storage that the run's rollouts are written to.
        offline: storages of other episodes, such as those of an earlier run.
        rank, ranks: which of the ranks reads it, and their number. Each has its own storages, and every ranks-th of the
            offline episodes.
        ends_at_time_limit: whether the time limit counts as the end of the task, see `train.time_limit`; the storages
            keep it as a truncation.
        further: storages of rollouts besides `own`, where several rollout workers collect for this rank.
        tasks: names of the tasks whose offline episodes are learned from; None: of all.
        collected: decisions that were collected for this rank in the present iteration.
    """

    own: ReplayStorage
    offline: tuple[ReplayStorage, ...] = ()
    rank: int = 0
    ranks: int = 1
    ends_at_time_limit: bool = False
    further: tuple[ReplayStorage, ...] = ()
    tasks: frozenset[str] | None = None
    collected: int = 0

    @property
    def storages(self) -> tuple[ReplayStorage, ...]:
        """Return the storages; a decision's first number is the position of its storage here."""
        return self.own, *self.further, *self.offline

    @property
    def owned(self) -> int:
        """Return how many of the storages, the first ones, hold rollouts of the run."""
        return 1 + len(self.further)

    def list_episodes(self, storage: int) -> list[StoredEpisode]:
        """Return the whole episodes of a storage that this rank learns from."""
        if storage < self.owned:
            return self.storages[storage].list_episodes()
        return choose_episodes(self.storages[storage], self.tasks)[self.rank :: self.ranks]

    def state(self) -> dict[str, Array]:
        """Return what `check_offline` needs when the run continues."""
        return compute_checksums(self.offline)

    def list_decisions(self, storage: int, episodes: list[StoredEpisode]) -> Array:
        """Return the decisions of a storage's episodes: int64 [B, 3], numbers of storage, track and slot."""
        parts = [
            np.stack([np.full_like(each.slots, storage), np.full_like(each.slots, each.track), each.slots], axis=1)
            for each in episodes
        ]
        return np.concatenate([np.zeros((0, 3), np.int64), *parts])

    def find_following(self, decisions: Array) -> Array:
        """Return the rows after decisions that do not terminate their episode, int64 [B, 3]."""
        slots = np.array([self.storages[storage].format.slots for storage in decisions[:, 0]])
        return np.column_stack([decisions[:, :2], (decisions[:, 2] + 1) % slots])

    def read_field(self, name: str, decisions: Array) -> Array:
        """Return a field of the rows of decisions int64 [B, 3], [B, ...]; docs/replay.md lists the fields.

        Those of several storages must have the same shape of it.
        """
        found = [
            (rows, storage.read_field(name, decisions[rows, 1], decisions[rows, 2]))
            for number, storage in enumerate(self.storages)
            if len(rows := np.flatnonzero(decisions[:, 0] == number))
        ]
        order, parts = zip(*found, strict=True)
        return np.concatenate(parts)[np.argsort(np.concatenate(order))]

    def find_human(self, decisions: Array) -> Array:
        """Return whether a human acted in decisions int64 [B, 3], whose chunks may differ in length: bool [B]."""
        found = np.zeros(len(decisions), bool)
        for number, storage in enumerate(self.storages):
            rows = decisions[:, 0] == number
            found[rows] = (storage.read_field("source", *decisions[rows, 1:].T) == Source.HUMAN).any(axis=1)
        return found

    def read_instructions(self, decisions: Array) -> list[str]:
        """Return the instructions of decisions int64 [B, 3]."""
        numbers = self.read_field("instruction", decisions) if len(decisions) else []
        pairs = zip(decisions[:, 0].tolist(), numbers, strict=True)
        return [self.storages[storage].read_text(int(number)) for storage, number in pairs]

    def read_observation(self, decisions: Array) -> Observation:
        """Return the observations of decisions int64 [B, 3]."""
        return self.read_chunks(decisions, 1)[0]

    def read_chunks(self, decisions: Array, length: int) -> tuple[Observation, Array, Array]:
        """Return the observations of decisions int64 [B, 3], and what was executed from each of them on.

        The executed actions are float32 [B, H, A] and their sources uint8 [B, H]; see `ReplayStorage.read_chunks`.
        """
        order, parts = list[Array](), list[tuple[Observation, Array, Array]]()
        for number, storage in enumerate(self.storages):
            rows = np.flatnonzero(decisions[:, 0] == number)
            if len(rows):
                where = decisions[rows, 1], decisions[rows, 2]
                parts.append((storage.read_observation(*where), *storage.read_chunks(*where, length)))
                order.append(rows)
        if len(parts) == 1:
            return parts[0]
        back = np.argsort(np.concatenate(order))
        observations, actions, sources = zip(*parts, strict=True)
        joined = Observation.concatenate(observations).select(back)
        return joined, np.concatenate(actions)[back], np.concatenate(sources)[back]


def compute_checksums(offline: Sequence[ReplayStorage]) -> dict[str, Array]:
    """Return a checksum of the content of each offline storage, if there are any."""
    return {"offline": np.array([each.checksum() for each in offline], np.int64)} if offline else {}


def check_offline(offline: Sequence[ReplayStorage], state: Mapping[str, Array]) -> None:
    """Check that offline storages are those of a `Replay.state`; raise `ReplayError` otherwise."""
    mine = compute_checksums(offline)
    if mine.keys() != state.keys() or any(not np.array_equal(state[name], mine[name]) for name in mine):
        message = "replay.preload is not what the run began with, or has changed. Give the same experience."
        raise ReplayError(message, code="replay-checkpoint-mismatch")


def list_stored(actor: Actor, names: Sequence[str]) -> dict[str, ReplayField]:
    """Return the extra fields of a storage that keeps these entries of an actor's traces; see `ReplayFormat`."""
    entries = {name: actor.trace_spec()[name] for name in names}
    return {f"trace/{n}": ReplayField(shape, str(kind).removeprefix("torch.")) for n, (shape, kind) in entries.items()}


def open_offline(folder: Path, spec: SimulatorSpec, pictures: bool = True) -> tuple[ReplayStorage, ...]:
    """Open offline experience for reading: a LeRobotDataset, a storage, or those of a run in the order of their names.

    Raises:
        ReplayError: there is none, or one is damaged, of another version, or still written; or see `read_dataset`.
    """
    if is_dataset(folder):
        from embodied_rl.rollout.replay.dataset_episodes import read_dataset  # needs the optional pyarrow and PyAV

        return (read_dataset(folder, spec, pictures),)
    parts = [folder] if (folder / FORMAT).is_file() else sorted(folder.glob("collector_*"))
    if not parts:
        raise ReplayError(
            f"replay.preload={folder} is no replay storage, no run's folder of them, and no LeRobotDataset."
            + suggest_experience(folder),
            code="replay-missing",
        )
    for part in parts:
        check_not_written(part)
    return tuple(map(ReplayStorage.open, parts))


def suggest_experience(folder: Path) -> str:
    """Return how to get a replay storage from a folder that is none, as a sentence after a space; "" if unknown."""
    if (folder / "replay").is_dir():
        return f" Its storages are in {folder / 'replay'}."
    found = {folder.suffix, *(path.suffix for path in folder.glob("*"))}
    if ".npz" in found:
        return " Episodes in .npz files are not read: collect them again with `embodied-rl collect … format=replay`."
    if found & {".mcap", ".db3"}:
        return f" Convert the recording: `embodied-rl collect from={folder} format=replay out=<storage>`."
    return ""


def make_storage_factory(layout: ReplayFormat, folder: Path, keep: bool = False) -> WriterFactory:
    """Return the factory that opens a storage of this format for each collector, in a folder inside `folder`.

    `keep` is that of `ReplayStorage`.
    """
    return WriterFactory(f"{__name__}:{open_storage.__name__}", (layout, folder, keep))


def open_storage(options: tuple[ReplayFormat, Path, bool], number: int) -> ReplayStorage:
    """Open the storage of collector `number` for writing; for a `WriterFactory`."""
    layout, folder, keep = options
    return ReplayStorage(layout, folder / f"collector_{number}", keep)
