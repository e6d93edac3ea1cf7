"""Records episodes until it is killed; says how far it is: for tests/datasets/test_writer.py."""

import sys
from pathlib import Path

from embodied_rl.datasets.lerobot.dataset_writer import DatasetWriter
from tests.support.making_datasets import FEATURES, FPS, frames, task


def main(folder: str, episodes: int, more: int) -> None:
    writer = DatasetWriter(Path(folder), FEATURES, FPS, "toy")
    for episode in range(episodes):
        writer.add_episode(frames(episode), task(episode))
    for _, frame in zip(range(more), frames(episodes), strict=False):
        writer.add(frame, task(episodes))
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
