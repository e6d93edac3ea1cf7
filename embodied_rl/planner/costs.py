"""What the stages of an iteration cost, as lines in the number of environments.

All seconds are those of one worker: one simulator process, one rank, one accelerator.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError


@dataclass(frozen=True)
class LinearCost:
    """`fixed + per_item · n`: what does not depend on how much there is to do, and what does."""

    fixed: float = 0.0
    per_item: float = 0.0

    def __call__(self, items: float) -> float:
        """The value for `items`; nothing costs nothing."""
        return self.fixed + self.per_item * items if items > 0 else 0.0

    @staticmethod
    def fit(items: Sequence[float], values: Sequence[float]) -> "LinearCost":
        """Least squares in relative error, so that small sizes count as much as large ones; never a negative part.

        Raises:
            UserError: fewer than two different sizes, or a value that is not positive.
        """
        if len(set(items)) < 2 or min(values) <= 0:
            raise UserError(f"a line needs two sizes and positive values; got {list(items)} and {list(values)}")
        design = np.stack([np.ones(len(items)), np.array(items, float)], axis=1) / np.array(values, float)[:, None]
        fixed, per_item = np.linalg.lstsq(design, np.ones(len(items)), rcond=None)[0]
        if fixed < 0:
            return LinearCost(0.0, _one_part(design[:, 1]))
        if per_item < 0:
            return LinearCost(_one_part(design[:, 0]), 0.0)
        return LinearCost(float(fixed), float(per_item))


@dataclass(frozen=True)
class Costs:
    """Seconds of the stages, for n environments (update: n decisions) of one worker.

    Attributes:
        step: physics and everything else of executing a chunk, without pictures.
        render: pictures at the chunk's end.
        inference: one call of the policy: a decision for each of n environments.
        transfer: one chunk's way to a simulator process and its result's way back, beyond what overlaps anyway.
        update: everything between the last chunk of a rollout and the first of the next, for n decisions on one rank.
        switch: once an iteration, where a device simulates, infers and learns in turn and has to swap memory.
        synchronise: once an iteration, where devices that infer have to get weights from devices that learn.
        jitter: σ of a log-normal factor of mean 1 on every step of a simulator process.
        step_on: whether `step` occupies a core of the host or the accelerator; without accelerators all is on cores.
        simulator_memory: bytes of a simulator process with n environments.
        policy_memory: bytes of a rank that infers and learns from n decisions.
        inference_memory: bytes of one that infers n decisions, and leaves learning to others; None takes policy_memory.
    """

    step: LinearCost
    inference: LinearCost
    update: LinearCost
    render: LinearCost = LinearCost()
    transfer: LinearCost = LinearCost()
    switch: float = 0.0
    synchronise: float = 0.0
    jitter: float = 0.0
    step_on: Literal["core", "device"] = "core"
    simulator_memory: LinearCost = LinearCost()
    policy_memory: LinearCost = LinearCost()
    inference_memory: LinearCost | None = None

    def simulate(self, envs: float) -> float:
        """Seconds of a chunk of n environments, pictures included."""
        return self.step(envs) + self.render(envs)

    @property
    def of_collectors(self) -> "Costs":
        """The same for those who collect while others learn."""
        return replace(self, policy_memory=self.inference_memory or self.policy_memory)

    def ratio(self, envs: int) -> float:
        """r: the smaller of simulation and inference over the larger, for n environments at once."""
        low, high = sorted((self.simulate(envs), self.inference(envs)))
        return low / high

    def fixed_share(self, envs: int) -> float:
        """f: share of the larger stage, for n environments at once, that does not shrink with their number."""
        simulated = self.step.fixed + self.render.fixed, self.simulate(envs)
        fixed, seconds = max(simulated, (self.inference.fixed, self.inference(envs)), key=lambda stage: stage[1])
        return fixed / seconds


@dataclass(frozen=True)
class CostFile:
    """Costs with where they come from, as they are written to disk.

    Attributes:
        costs: the lines.
        about: when, where and on what they were measured, or how they were assumed; for people.
        spread: relative spread of the measurements behind a line, by its name.
    """

    costs: Costs
    about: Mapping[str, Any] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """As JSON."""
        content = {"costs": asdict(self.costs), "about": dict(self.about), "spread": dict(self.spread)}
        return json.dumps(content, indent=2) + "\n"

    @staticmethod
    def read(path: Path) -> "CostFile":
        """The counterpart of `text`; people may write such a file by hand.

        Raises:
            UserError: the file is missing, is not JSON, or holds something else than costs.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return CostFile(_costs(content["costs"], path), content.get("about", {}), content.get("spread", {}))
        except FileNotFoundError:
            remedy = "`embodied-rl plan` measures costs and writes such a file"
            raise UserError(f"costs={path}: there is no such file; {remedy}.") from None
        except (OSError, KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(f"costs={path} is not a file of stage costs ({type(error).__name__}: {error})") from None


def _costs(content: Mapping[str, Any], path: Path) -> Costs:
    known = {item.name: item for item in fields(Costs)}
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name not in known:
            raise UserError(f"costs={path}: unknown cost '{name}'.{suggest_name(name, list(known))}")
        values[name] = LinearCost(**value) if isinstance(value, Mapping) else value
    missing = [name for name in ("step", "inference", "update") if not isinstance(values.get(name), LinearCost)]
    if missing:
        raise UserError(f'costs={path}: {missing[0]} must be given as {{"fixed": seconds, "per_item": seconds}}')
    return Costs(**values)


def _one_part(column: np.ndarray) -> float:
    """Least squares of `column · x = 1`."""
    return float(column.sum() / (column @ column))
