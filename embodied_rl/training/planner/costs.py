"""Model the costs of an iteration's stages as linear functions of the number of environments.

All times are those of one worker: one simulator process, one rank, one accelerator.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embodied_rl.config.freeze import at_least, freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import read_json, shorten


@dataclass(frozen=True)
class LinearCost:
    """A linear cost `fixed + per_item · n` of n items."""

    fixed: float = at_least(0, 0.0)
    per_item: float = at_least(0, 0.0)

    def __call__(self, items: float) -> float:
        """Return the cost of `items`; 0 for no items."""
        return self.fixed + self.per_item * items if items > 0 else 0.0

    @staticmethod
    def fit(items: Sequence[float], values: Sequence[float]) -> "LinearCost":
        """Fit a line by least squares in relative error, so that small sizes count as much; neither part is negative.

        Raises:
            UserError: there are fewer than two different sizes, or a value is not positive.
        """
        if len(set(items)) < 2 or min(values) <= 0:
            message = f"a line needs two sizes and positive values; got {list(items)} and {list(values)}"
            raise UserError(message, code="costs-invalid")
        design = np.stack([np.ones(len(items)), np.array(items, float)], axis=1) / np.array(values, float)[:, None]
        fixed, per_item = np.linalg.lstsq(design, np.ones(len(items)), rcond=None)[0]
        if fixed < 0:
            return LinearCost(0.0, _one_part(design[:, 1]))
        if per_item < 0:
            return LinearCost(_one_part(design[:, 0]), 0.0)
        return LinearCost(float(fixed), float(per_item))


@dataclass(frozen=True)
class Costs:
    """The costs of the stages in seconds, for n environments (update: n decisions) of one worker.

    Attributes:
        step: executing a chunk: physics and everything else but pictures.
        render: pictures at the chunk's end.
        inference: one call of the policy: a decision for each of n environments.
        transfer: sending a chunk to a simulator process and its result back, without what overlaps anyway.
        update: everything between the last chunk of a rollout and the first of the next, for n decisions on one rank.
        switch: once an iteration, if a device simulates, infers and learns in turn and has to swap memory.
        synchronise: once an iteration, if inferring devices have to get weights from learning devices.
        jitter: σ of a log-normal factor of mean 1 on every step of a simulator process.
        step_on: whether `step` uses a core of the host or the accelerator; without accelerators it always uses cores.
        simulator_memory: bytes of a simulator process with n environments.
        policy_memory: bytes of a rank that infers and learns from n decisions.
        inference_memory: bytes of a worker that infers n decisions but does not learn; None takes policy_memory.
    """

    step: LinearCost
    inference: LinearCost
    update: LinearCost
    render: LinearCost = LinearCost()
    transfer: LinearCost = LinearCost()
    switch: float = at_least(0, 0.0)
    synchronise: float = at_least(0, 0.0)
    jitter: float = at_least(0, 0.0)
    step_on: Literal["core", "device"] = "core"
    simulator_memory: LinearCost = LinearCost()
    policy_memory: LinearCost = LinearCost()
    inference_memory: LinearCost | None = None

    def simulate(self, envs: float) -> float:
        """Return the seconds to simulate a chunk in n environments, pictures included."""
        return self.step(envs) + self.render(envs)

    @property
    def of_collectors(self) -> "Costs":
        """Return the costs of rollout workers, which infer but do not learn."""
        return replace(self, policy_memory=self.inference_memory or self.policy_memory)

    def ratio(self, envs: int) -> float:
        """Return r: the smaller of simulation and inference time over the larger, for n environments at once."""
        low, high = sorted((self.simulate(envs), self.inference(envs)))
        return low / high

    def fixed_share(self, envs: int) -> float:
        """Return f: the fixed share of the slower stage's time for n environments, independent of their number."""
        simulated = self.step.fixed + self.render.fixed, self.simulate(envs)
        fixed, seconds = max(simulated, (self.inference.fixed, self.inference(envs)), key=lambda stage: stage[1])
        return fixed / seconds


@dataclass(frozen=True)
class CostFile:
    """Stage costs with their origin, as stored on disk.

    Attributes:
        about: when, where and on which hardware they were measured, or how they were assumed; for readers.
        spread: relative spread of the measurements of each cost, by name.
    """

    costs: Costs
    about: Mapping[str, Any] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """Return the file's JSON text."""
        content = {"costs": asdict(self.costs), "about": dict(self.about), "spread": dict(self.spread)}
        return json.dumps(content, indent=2) + "\n"

    @staticmethod
    def read(path: Path) -> "CostFile":
        """Read a cost file, written by `text` or by hand.

        Raises:
            UserError: the file is missing, is not JSON, or does not hold costs.
        """
        if not path.exists():
            remedy = "`embodied-rl plan` measures costs and writes such a file"
            raise UserError(f"costs={path}: there is no such file; {remedy}.", code="costs-missing")
        try:
            content = read_json(path)
        except UserError as error:
            raise UserError(f"costs={path} is not a file of stage costs ({error})", code="costs-invalid") from None
        try:
            costs = freeze_config(Costs, content["costs"])
            json.dumps(asdict(costs), allow_nan=False)  # refuses what is not finite
            about, spread = dict(content.get("about", {})), dict(content.get("spread", {}))
        except UserError as error:
            raise UserError(f"costs={path}: {error}", code="costs-invalid") from None
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            reason = f"{type(error).__name__}: {shorten(error)}"
            raise UserError(f"costs={path} is not a file of stage costs ({reason})", code="costs-invalid") from None
        return CostFile(costs, about, spread)


def _one_part(column: np.ndarray) -> float:
    """Return the least-squares solution x of `column · x = 1`."""
    return float(column.sum() / (column @ column))
