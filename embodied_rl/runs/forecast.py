"""Predicted iteration time of a run, compared with the measured one."""

import json
import statistics
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.folder import PLAN

TOLERANCE = 0.15
"""Relative difference from the prediction above which a message is shown."""
WINDOW = 10
"""Number of iterations of which the median is compared with the prediction."""


@dataclass
class Forecast:
    """The prediction in a run's plan.json, None without one, and the recent iteration times.

    `bubble` is the predicted idle share of the rollout; `collected` the decisions per second while collecting, None in
    plans of earlier versions; `skip` the number of first iterations to ignore.
    """

    seconds: float | None = None
    bubble: float = 0.0
    skip: int = 0
    collected: float | None = None
    reported: bool = False
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @staticmethod
    def read(folder: Path, skip: int = 0) -> "Forecast":
        """Read the forecast of a run's folder; return an empty forecast if the run was started without a prediction.

        Raises:
            UserError: the file is damaged.
        """
        try:
            prediction = json.loads((folder / PLAN).read_text(encoding="utf-8"))["chosen"]["prediction"]
            collected = prediction.get("collected_per_second")
            collected = None if collected is None else float(collected)
            return Forecast(float(prediction["seconds"]), float(prediction["bubble"]), skip, collected)
        except FileNotFoundError:
            return Forecast()
        except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(
                f"{folder / PLAN} is damaged ({type(error).__name__}: {error}). Restore it, or remove it: the run "
                "continues without its prediction.",
                code="plan-damaged",
            ) from None

    def figures(self) -> dict[str, float]:
        """Return the predicted metrics, for `time/iteration`, `time/bubble` and `time/collected_per_second`."""
        if self.seconds is None:
            return {}
        collected = {} if self.collected is None else {"time/collected_per_second_predicted": self.collected}
        return {"time/iteration_predicted": self.seconds, "time/bubble_predicted": self.bubble} | collected

    def note(self, seconds: float) -> str | None:
        """Add an iteration's seconds. Return a message once, if the median differs too much from the prediction."""
        if self.seconds is None or self.reported:
            return None
        if self.skip:
            self.skip -= 1
            return None
        self.recent.append(seconds)
        if len(self.recent) < WINDOW or abs((found := statistics.median(self.recent)) / self.seconds - 1) <= TOLERANCE:
            return None
        self.reported = True
        return (
            f"Iterations take {found:.2f} s, {self.seconds:.2f} s were predicted ({found / self.seconds - 1:+.0%}): "
            "the machine differs from when its stages were measured. `embodied-rl plan` with this run's settings "
            "measures them again, for the next run with plan=auto."
        )
