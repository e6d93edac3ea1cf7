"""`embodied-rl collect`: demonstrations or rollouts on disk, one file an episode, or a LeRobotDataset.

<out>/episode_000000.npz    images/<camera> uint8 [T, h, w, 3] and state float32 [T, S] before each control step;
                            actions float32 [T, A], reward float32 [T] and success bool [T] of it
<out>/index.jsonl           one line an episode: file, task, instruction, seed, split, success, steps

With format=lerobot, instead of .npz files, what docs/datasets.md describes.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from embodied_rl.assembly.acting import actor_for
from embodied_rl.config.schema import CollectConfig
from embodied_rl.evaluate.protocol import enumerate_episodes
from embodied_rl.interfaces.policy import Actor, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, Simulator, SimulatorSpec, StepResult
from embodied_rl.rollout.episodes import episode_seed
from embodied_rl.runs.storage import explained, make_folder
from embodied_rl.simulators.kind import SimulatorKind

AT_ONCE = 16
"""Episodes that run side by side."""


@dataclass
class Record:
    """One episode as it goes, control step by control step: what was seen, done and reached."""

    episode: Episode
    instruction: str
    observations: list[Observation] = field(default_factory=list)
    actions: list[Array] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    success: list[bool] = field(default_factory=list)
    source: list[int] = field(default_factory=list)

    def arrays(self) -> dict[str, Array]:
        """What the file holds."""
        seen = Observation.concatenate(self.observations)
        return {
            **{f"images/{name}": image for name, image in seen.images.items()},
            "state": seen.state,
            "actions": np.stack(self.actions),
            "reward": np.array(self.reward, np.float32),
            "success": np.array(self.success, bool),
        }


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
        actor = actor_for(config.policy, simulator, AT_ONCE)
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
        yield partial(write_npz, Path(config.out))
        return
    from embodied_rl.datasets.lerobot import collected  # pyarrow and PyAV, for those who ask for them

    with collected.new_dataset(Path(config.out), spec, config.sim.name) as writer:
        yield lambda record: {"episode": collected.write(writer, record)}


def write_npz(out: Path, record: Record) -> dict[str, object]:
    """Write one episode's file; says which."""
    file = f"episode_{record.episode.index:06d}.npz"
    np.savez_compressed(out / file, allow_pickle=False, **record.arrays())
    return {"file": file}


def described(record: Record, task: str) -> dict[str, object]:
    """An episode's line of the index, but for where it is."""
    return {
        "task": task, "instruction": record.instruction, "seed": record.episode.seed,
        "split": record.episode.split, "success": any(record.success), "steps": len(record.actions),
    }  # fmt: skip


@torch.no_grad()
def collect(actor: Actor, simulator: Simulator, episodes: Sequence[Episode], seed: int) -> Iterator[Record]:
    """Run episodes without exploration, one control step at a time; yields each once it is over."""
    for start in range(0, len(episodes), AT_ONCE):
        batch = episodes[start : start + AT_ONCE]
        yield from _batch(actor, simulator, batch, seed)


def _batch(actor: Actor, simulator: Simulator, episodes: Sequence[Episode], seed: int) -> list[Record]:
    observation = simulator.reset([*episodes, *[None] * (AT_ONCE - len(episodes))])
    records = [Record(episode, observation.instruction[row]) for row, episode in enumerate(episodes)]
    active, decision = np.arange(len(episodes)), 0
    while len(active):
        indices = np.array([episodes[int(row)].index for row in active])
        keys = NoiseKeys(seed, indices, np.full(len(active), decision))
        chosen = actor.act(observation.select(active).without_privileged(), keys, explore=False).actions
        executed, action_dim = chosen.shape[1:]
        chunk = np.zeros((AT_ONCE, executed, action_dim), np.float32)
        chunk[active] = chosen
        for step in range(executed):
            result = simulator.step(chunk[:, step : step + 1], [None] * AT_ONCE)
            _note(records, active, observation, result)
            observation = result.observation
            active = np.setdiff1d(active, result.ended)
            if not len(active):
                break
        decision += 1
    return records


def _note(records: list[Record], active: Array, before: Observation, result: StepResult) -> None:
    """Add one control step to the records of the environments that took it."""
    for row in active:
        record = records[row]
        record.observations.append(before.select([row]))
        record.actions.append(result.executed[row, 0].copy())
        record.reward.append(float(result.reward[row, 0]))
        record.success.append(bool(result.success[row, 0]))
        record.source.append(int(result.source[row, 0]))
