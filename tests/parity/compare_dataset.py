"""Is what lerobot reads in a dataset what we read in it?

<python with lerobot> lerobot_dataset.py read FOLDER > read.json
python compare_dataset.py FOLDER read.json
"""

import json
import sys
from pathlib import Path

import numpy as np

from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

NAMES = {"task", "action", "action_is_pad"}


def main(folder: str, file: str) -> None:
    theirs, dataset = json.loads(Path(file).read_text()), LeRobotDataset(folder)
    horizon = len(theirs["rows"][0]["action"])
    ours = dataset.read(range(len(dataset)), horizon)
    assert (theirs["fps"], theirs["episodes"], len(theirs["rows"])) == (
        dataset.info.fps, len(dataset.episodes), len(dataset),
    )  # fmt: skip
    colour = 0.0
    for row, their in enumerate(theirs["rows"]):
        assert their["task"] == ours.observation.instruction[row]
        np.testing.assert_array_equal(ours.actions[row], np.float32(their["action"]))
        np.testing.assert_array_equal(ours.padding[row], their["action_is_pad"])
        for name, value in their.items():
            feature = dataset.info.features.get(name)
            if feature is not None and feature.numeric and name not in NAMES:
                found = dataset.column(name, [row])[0].astype(np.float32)  # as lerobot hands out floats
                np.testing.assert_array_equal(found, np.asarray(value, np.float32).reshape(feature.shape))
            if feature is not None and feature.is_image:
                shown = ours.observation.images[name.removeprefix("observation.images.")][row]
                halves = np.stack(np.split(shown, 2, axis=1)).mean((1, 2))
                colour = max(colour, float(abs(halves - value).max()))
    assert colour < 0.5
    for key, summary in theirs["statistics"].items():
        for name, value in summary.items():
            np.testing.assert_allclose(
                dataset.statistics[key][name], np.atleast_1d(np.asarray(value, float)), rtol=1e-6
            )
    print(f"{folder}: {len(dataset)} rows agree; mean colours differ by {colour:.3f} of 255 at most")


if __name__ == "__main__":
    main(*sys.argv[1:])
