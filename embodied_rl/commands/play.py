"""`embodied-rl play`: record one episode of each task as a video."""

from pathlib import Path

from embodied_rl.assembly.policy_factory import choose_policy
from embodied_rl.evaluate.protocol import enumerate_episodes
from embodied_rl.evaluate.video import record_episodes, tile_recordings, write_mp4
from embodied_rl.interfaces.sim import Episode, SimulatorSpec
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import PlayConfig
from embodied_rl.system.atomic_write import make_folder


def run(config: PlayConfig) -> None:
    """Record the episodes, write the video, and print whether each succeeded."""
    kind = SimulatorKind.find(config.sim)
    episodes = choose_one_of_each(kind.spec, config)
    simulator = kind.build(len(episodes))
    actor = choose_policy(config.policy, simulator, len(episodes))
    recordings = record_episodes(actor, simulator, episodes, num_envs=len(episodes), seed=config.seed)
    simulator.close()
    path = make_folder(Path(config.out), "out") / f"{Path(config.policy.removeprefix('asset:')).stem}.mp4"
    write_mp4(path, tile_recordings(recordings, kind.spec.control_hz), kind.spec.control_hz)
    for recording in recordings:
        print(f"  {'success' if recording.success else 'failure'}  {recording.instruction}")
    print(f"Video: {path}")


def choose_one_of_each(spec: SimulatorSpec, config: PlayConfig) -> list[Episode]:
    """Return the first episode of every task that `config.task` selects."""
    split = "eval" if config.split == "train" else config.split
    listed = enumerate_episodes(spec, split, 8 * len(spec.tasks), task=config.task, seed=config.seed)
    first: dict[int, Episode] = {}
    for episode in listed:
        first.setdefault(episode.task, episode)
    return [Episode(row, e.task, e.seed, split=e.split) for row, e in enumerate(first.values())]
