"""Writes invented episodes to the replay storage in a folder, until it is killed: for `test_replay_files.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "rollout"))

import numpy as np
from replaying import Script, layout

from embodied_rl.replay.storage import ReplayStorage


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
