"""`embodied-rl collect`: demonstrations or rollouts on disk, one file an episode, or a LeRobotDataset.

<out>/episode_000000.npz    see `embodied_rl.datasets.record`
<out>/index.jsonl           one line an episode: file, task, instruction, seed, split, success, steps

With format=lerobot, instead of .npz files, what docs/datasets.md describes.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from embodied_rl.assembly.acting import policy_for
from embodied_rl.config.schema import CollectConfig
from embodied_rl.datasets.record import Record, write_npz
from embodied_rl.evaluate.protocol import enumerate_episodes
from embodied_rl.interfaces.policy import DeployedPolicy
from embodied_rl.interfaces.sim import Episode, Observation, Simulator, SimulatorSpec, StepResult
from embodied_rl.processes.local import wrap_simulator
from embodied_rl.rollout.episodes import episode_seed
from embodied_rl.rollout.runner import EpisodeRunner, Observer, Running, in_batches
from embodied_rl.runs.storage import explained, make_folder
from embodied_rl.simulators.kind import SimulatorKind

AT_ONCE = 16
"""Episodes that run side by side."""


def run(config: CollectConfig) -> None:
    """Collect and write; says how many succeeded."""
    kind = SimulatorKind.of(config.sim)
    split = "eval" if config.split == "train" else config.split
    listed = enumerate_episodes(kind.spec, split, config.episodes, task=config.task, seed=config.seed)
    if config.split == "train":  # demonstrations may be learned from, so they must not share seeds with evaluations
        listed = [Episode(e.index, e.task, episode_seed("train", "train", config.seed, e.index)) for e in listed]
    out, successes = make_folder(Path(config.out), "out"), 0
    with writing(config, kind.spec) as write:  # what is wrong with it should not wait for the simulator
        simulator = kind.build(AT_ONCE)
        actor = policy_for(config.policy, simulator, AT_ONCE)
        with explained(out, "out"), (out / "index.jsonl").open("w", encoding="utf-8") as index:
            for record in collect(actor, simulator, listed, config.seed):
                place, task = write(record), kind.spec.tasks[record.episode.task].name
                index.write(json.dumps(place | described(record, task)) + "\n")
                successes += any(record.success)
        simulator.close()
    print(f"{len(listed)} episodes in {out}, {successes} successful")


@contextmanager
def writing(config: CollectConfig, spec: SimulatorSpec) -> Iterator[Callable[[Record], dict[str, object]]]:
    """A function that writes an episode in the format that is configured, and says where it is.

    Raises:
        Unavailable: a package that the format needs is not installed.
    """
    if config.format == "npz":
        yield lambda record: {"file": write_npz(Path(config.out), record)}
        return
    from embodied_rl.datasets.lerobot import collected  # pyarrow and PyAV, for those who ask for them

    with collected.new_dataset(Path(config.out), spec, config.sim.name) as writer:
        yield lambda record: {"episode": collected.write(writer, record)}


def described(record: Record, task: str) -> dict[str, object]:
    """An episode's line of the index, but for where it is."""
    return {
        "task": task, "instruction": record.instruction, "seed": record.episode.seed,
        "split": record.episode.split, "success": any(record.success), "steps": len(record.actions),
    }  # fmt: skip


def collect(policy: DeployedPolicy, simulator: Simulator, episodes: Sequence[Episode], seed: int) -> Iterator[Record]:
    """Run episodes without exploration, one control step at a time; yields each once those beside it are over, too.

    Raises:
        UserError: NaN from the policy or the simulator, saying in which episode.
        WorkerDied: the simulator's worker died.
    """
    handle, runner = wrap_simulator(simulator), EpisodeRunner(policy, simulator.spec, seed, stepwise=True)
    for batch in in_batches(episodes, AT_ONCE):
        recorder = _Recorder()
        runner.run([handle], AT_ONCE, batch, recorder)
        yield from (recorder.records[episode.index] for episode in batch)


class _Recorder(Observer):
    """Records of episodes, by their index."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}

    def on_start(self, started: Sequence[Running], observation: Observation) -> None:
        for each in started:
            self.records[each.episode.index] = Record(each.episode, observation.instruction[each.row])

    def on_step(self, running: Sequence[Running], before: Observation, result: StepResult) -> None:
        for each in running:
            self.records[each.episode.index].add(before, result, each.row)
