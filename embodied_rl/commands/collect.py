"""`embodied-rl collect`: write demonstrations or rollouts to disk, one file per episode, or as a LeRobotDataset.

<out>/episode_000000.npz    see `embodied_rl.datasets.record`
<out>/index.jsonl           one line per episode: file, task, instruction, seed, split, success, steps

With format=lerobot, the dataset that docs/datasets.md describes replaces the .npz files; with format=replay, the replay
storage of docs/replay.md. Where a scorer leaves out bad
episodes (filter.…), <out>/filter.json says which.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.assembly.policy_factory import WORDS, check_acting, choose_policy, find_policy_file
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.critic.evaluation.demonstration_filter import choose_filter
from embodied_rl.critic.evaluation.filtered_demonstrations import filter_records
from embodied_rl.datasets.record import Record, write_npz
from embodied_rl.evaluate.protocol import enumerate_episodes
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import DeployedPolicy
from embodied_rl.interfaces.sim import Array, Episode, Observation, Simulator, SimulatorSpec, StepResult
from embodied_rl.rollout.episode_sampler import derive_episode_seed, derive_noise_seed
from embodied_rl.rollout.replay import replay_files
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode, split_into_batches
from embodied_rl.runtime.processes.local import wrap_simulator
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import CollectConfig
from embodied_rl.system.atomic_write import explain_errors, make_folder

AT_ONCE = 16
"""Episodes that run side by side."""
_INDEX = "index.jsonl"


def run(config: CollectConfig) -> None:
    """Collect episodes, write them, and print how many succeeded."""
    kind = SimulatorKind.find(config.sim)
    split = "eval" if config.split == "train" else config.split
    listed = enumerate_episodes(kind.spec, split, config.episodes, task=config.task, seed=config.seed)
    if config.split == "train":  # demonstrations may be learned from, so they must not share seeds with evaluations
        listed = [Episode(e.index, e.task, derive_episode_seed("train", "train", config.seed, e.index)) for e in listed]
    noise = derive_noise_seed("train" if config.split == "train" else "report", config.seed)
    chosen = choose_filter(config.reward, config.filter, kind.spec, print)
    out, successes, kept = Path(config.out), 0, 0
    if config.format != "replay":  # a storage appears complete
        make_folder(out, "out")
    keep = iter if chosen is None else partial(filter_records, chosen, spec=kind.spec, folder=out)
    with choose_writer(config, kind.spec) as write:  # report its errors before building the simulator
        envs = kind.limit_environments(AT_ONCE)
        simulator = kind.build(envs)
        actor = choose_policy(config.policy, simulator, envs)
        with explain_errors(out, "out"), (out / _INDEX).open("w", encoding="utf-8") as index:
            for record in keep(collect_episodes(actor, simulator, listed, noise, envs)):
                success, task = any(record.success), kind.spec.tasks[record.episode.task].name
                entries = {
                    "task": task, "instruction": record.instruction, "seed": record.episode.seed,
                    "split": record.episode.split, "success": success, "steps": len(record.actions),
                }  # fmt: skip
                index.write(json.dumps(write(record) | entries) + "\n")
                successes, kept = successes + success, kept + 1
        simulator.close()
    print(f"{kept} episodes in {out}, {successes} successful")


def check_collection(config: CollectConfig) -> None:
    """Check who acts, where episodes go and who filters, for a dry run."""
    check_acting(config)
    check_out(config)
    choose_filter(config.reward, config.filter, SimulatorKind.find(config.sim).spec)


def check_out(config: CollectConfig) -> None:
    """Check that `out` holds no earlier episodes; raise `UserError` otherwise."""
    out = Path(config.out)
    if config.format == "lerobot":
        from embodied_rl.datasets.lerobot.collected import check_new  # needs the optional pyarrow and PyAV

        check_new(out)
    elif config.format == "replay":
        replay_files.check_new(out)
    elif (out / _INDEX).exists():
        raise UserError(f"out={out} holds episodes of another collection: give a new folder.", code="output-exists")


@contextmanager
def choose_writer(config: CollectConfig, spec: SimulatorSpec) -> Iterator[Callable[[Record], dict[str, object]]]:
    """Yield a function that writes an episode in the configured format, and returns its index entries.

    Raises:
        Unavailable: a package that the format needs is not installed.
        DatasetError, ReplayError: `out` is not new.
    """
    check_out(config)
    if config.format == "npz":
        yield lambda record: {"file": write_npz(Path(config.out), record, spec.body)}
        return
    if config.format == "replay":
        named = config.policy in WORDS
        executed = 1 if named else read_metadata(find_policy_file(config.policy)).embodiment.executed
        rows = config.episodes * (-(-spec.horizon // executed) + 1)
        storage = ReplayStorage(ReplayFormat.of_simulator(spec, 1, rows + 1, executed), Path(config.out))
        with closing(storage):
            yield partial(write_replay, storage)
            storage.flush()
        return
    from embodied_rl.datasets.lerobot import collected  # needs the optional pyarrow and PyAV

    with collected.make_dataset(Path(config.out), spec, config.sim.name, config.images) as writer:
        yield lambda record: {"episode": collected.write_episode(writer, record)}


def write_replay(storage: ReplayStorage, record: Record) -> dict[str, object]:
    """Write an episode into a replay storage, in decisions of as many control steps as its format has."""
    executed, length = storage.format.executed, len(record.actions)
    decisions = -(-length // executed)

    def chunk(values: Sequence[Any], dtype: type) -> Array:
        array = np.asarray(values, dtype)
        filler = np.zeros((decisions * executed - length, *array.shape[1:]), dtype)
        return np.concatenate([array, filler]).reshape(decisions, executed, *array.shape[1:])

    last = np.arange(decisions) == decisions - 1
    result = StepResult(
        reward=chunk(record.reward, np.float32),
        success=chunk(record.success, np.bool_),
        steps=np.minimum(executed, length - executed * np.arange(decisions)),
        executed=chunk(record.actions, np.float32),
        source=chunk(record.source, np.uint8),
        terminated=last & record.terminated,
        truncated=last & (not record.terminated),
        observation=record.observations[-1],
        ended=np.array([0]),
        final_observation=record.final,
    )
    seen = Observation.concatenate(record.observations[::executed])
    storage.write_episode(0, record.episode, seen, result.executed, result)
    return {"episode": record.episode.index}


def collect_episodes(
    policy: DeployedPolicy, simulator: Simulator, episodes: Sequence[Episode], seed: int, envs: int = AT_ONCE
) -> Iterator[Record]:
    """Run episodes without exploration, one control step at a time; yield the records of a batch when it is done.

    Raises:
        UserError: the policy or the simulator returned NaN; the message names the episode.
        WorkerDied: the simulator's worker died.
    """
    handle, runner = wrap_simulator(simulator), EpisodeRunner(policy, simulator.spec, seed, stepwise=True)
    for batch in split_into_batches(episodes, envs):
        recorder = _EpisodeRecorder()
        runner.run([handle], envs, batch, recorder)
        yield from (recorder.records[episode.index] for episode in batch)


class _EpisodeRecorder(Observer):
    """An observer that records episodes, by their index."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def on_start(self, started: Sequence[RunningEpisode], observation: Observation) -> None:
        for each in started:
            self.records[each.episode.index] = Record(each.episode, observation.instruction[each.row])

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        for each in running:
            self.records[each.episode.index].add(before, result, each.row)
