"""Load newer weights of a training run in the background, test them, and replace the served weights."""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np

from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import read_observation
from embodied_rl.policy_server.served import ServedPolicy, ServedWeights

log = logging.getLogger(__name__)


class WeightFollower:
    """Checks for newer weights in a thread, while its context lasts.

    Args:
        present: the file of the served weights. find: returns the newest file.
        report: called with a line for each replacement, and for each rejected file.
        period: seconds between two checks.
    """

    def __init__(
        self,
        served: ServedPolicy,
        present: Path,
        find: Callable[[], Path],
        load: Callable[[Path], ServedWeights],
        report: Callable[[str], None] = log.warning,
        period: float = 1.0,
    ) -> None:
        self._served, self._present, self._find, self._load, self._report = served, present, find, load, report
        self._period, self._stop, self._rejected, self._last_error = period, Event(), None, ""

        def run() -> None:
            while not self._stop.wait(self._period):
                self.update()

        self._thread = Thread(target=run, name="follower", daemon=True)

    def __enter__(self) -> "WeightFollower":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(self._period + 30)

    def update(self) -> bool:
        """Replace the weights if there are newer ones; return whether they were replaced."""
        newest = self._present
        try:
            newest = self._find()
            if newest in (self._present, self._rejected):
                return False
            weights = self._load(newest)
            spec = weights.spec  # they have to answer grey pictures and a state of zeros
            images = {IMAGES + name: np.full((*size, 3), 128, np.uint8) for name, size in spec.cameras.items()}
            fixed = images | {STATE: np.zeros(len(spec.state_names), np.float32), PROMPT: (*spec.words, "move")[0]}
            if not np.isfinite(weights.policy.infer(read_observation(fixed, spec)[0])).all():
                raise RuntimeError("the actions for a fixed observation are NaN or infinite")
            self._served.replace(weights)
        except Exception as error:  # noqa: BLE001 - any error in a file is reported, and the next file is awaited
            if newest.exists():
                self._rejected = newest
            kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
            line = f"Weights stay at version {self._served.weights.version}: {kind}{error}"
            if line != self._last_error:
                self._report(line)
            self._last_error = line
            return False
        self._present, self._last_error = newest, ""
        self._report(f"Weights are now version {weights.version}, of {newest}")
        return True
