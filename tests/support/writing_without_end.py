"""Writes invented episodes to the replay storage in a folder, until killed: for tests/rollout/replay/test_files.py."""

import sys
from pathlib import Path

import numpy as np

from embodied_rl.rollout.replay.storage import ReplayStorage
from tests.support.replaying import Script, layout


def main(folder: str, seed: int) -> None:
    storage = ReplayStorage(layout(11, tracks=3), Path(folder))
    script = Script(storage, next_index=1000 * seed)
    rng = np.random.default_rng(seed)
    start = storage.state()["replay/rows"]
    announced = False
    while True:
        script.step(rng)
        script.tracks = [[{}] for _ in script.tracks]
        if not announced and (storage.state()["replay/rows"] - start > storage.format.slots).all():
            print("round", flush=True)
            announced = True


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
