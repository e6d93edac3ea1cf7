"""Newer weights of a run that trains are loaded and tried in the background, and swapped in between two answers."""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import numpy as np

from embodied_rl.deployment.policy_server.served import ServedPolicy, ServedWeights
from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import read_observation

log = logging.getLogger(__name__)

PERIOD = 1.0
"""Seconds between two looks."""


class WeightFollower:
    """Looks for newer weights on a thread of its own, for a `with` block.

    Args:
        served: gets them.
        present: the file of its weights.
        find: returns the newest file.
        load: loads a file.
        told: called with a line for each swap, and for each file that is refused.
        period: seconds between two looks.
    """

    def __init__(
        self,
        served: ServedPolicy,
        present: Path,
        find: Callable[[], Path],
        load: Callable[[Path], ServedWeights],
        told: Callable[[str], None] = log.warning,
        period: float = PERIOD,
    ) -> None:
        self._served, self._present, self._find, self._load, self._told = served, present, find, load, told
        self._period, self._stop, self._refused, self._said = period, Event(), None, ""
        self._thread = Thread(target=self._run, name="follower", daemon=True)

    def __enter__(self) -> "WeightFollower":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(self._period + 30)

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            self.look()

    def look(self) -> bool:
        """Swap in newer weights, if there are any, and return whether there were."""
        newest = self._present
        try:
            newest = self._find()
            if newest in (self._present, self._refused):
                return False
            weights = self._load(newest)
            _check_inference(weights)
            self._served.replace(weights)
        except Exception as error:  # noqa: BLE001 - whatever a file holds, the next one is looked for, and this is told
            if newest.exists():
                self._refused = newest
            kind = "" if isinstance(error, UserError | OSError) else f"{type(error).__name__}: "
            self._tell_once(f"Weights stay at version {self._served.weights.version}: {kind}{error}")
            return False
        self._present, self._said = newest, ""
        self._told(f"Weights are now version {weights.version}, of {newest}")
        return True

    def _tell_once(self, line: str) -> None:
        if line != self._said:
            self._told(line)
        self._said = line


def _check_inference(weights: ServedWeights) -> None:
    """Run one inference on a fixed observation, grey images and a state of zeros.

    Raises:
        RuntimeError: the actions are NaN or infinite.
    """
    spec = weights.spec
    images = {IMAGES + name: np.full((*size, 3), 128, np.uint8) for name, size in spec.cameras.items()}
    fixed = images | {STATE: np.zeros(len(spec.state_names), np.float32), PROMPT: (*spec.words, "move")[0]}
    seen, _ = read_observation(fixed, spec)
    if not np.isfinite(weights.policy.infer(seen)).all():
        raise RuntimeError("the actions for a fixed observation are NaN or infinite")
