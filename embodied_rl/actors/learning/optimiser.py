"""Adam over named groups of parameters, with gradients averaged over ranks and state as plain tensors.

If a network is sharded over ranks, one Adam updates its shards and another the whole parameters; both share the
learning rates and the gradient's norm.
"""

import inspect
import sys
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from embodied_rl.actors.learning.sharded import Sharding
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.ranks.collective import Ranks


class LightAdam(torch.optim.Adam):
    """PyTorch's Adam, without `torch._dynamo`: importing that costs each process more than a second, and 100 MB.

    PyTorch excludes an optimiser's methods from compilation by wrappers that import the compiler at the first call.
    Nothing compiles an optimiser here, so the wrappers are removed. The arithmetic is PyTorch's.
    """

    _step = staticmethod(inspect.unwrap(torch.optim.Adam.step))

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float], eps: float) -> None:
        if "torch._dynamo" not in sys.modules:
            for method in vars(torch.optim.Optimizer).values():
                plain = getattr(method, "__wrapped__", None)
                if plain is not None and not hasattr(plain, "__dynamo_disable"):
                    setattr(plain, "__dynamo_disable", plain)
        super().__init__(groups, betas=betas, eps=eps)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step."""
        self._step(self, closure)


class Optimiser:
    """Adam with one learning rate per group and one gradient norm over all groups (betas .9, .95 as in pi_RL)."""

    def __init__(
        self,
        groups: Mapping[str, list[nn.Parameter]],
        rates: Mapping[str, float],
        grad_clip: float,
        sharding: Sharding | None = None,
    ) -> None:
        """Create an optimiser for the parameters of the groups that require a gradient.

        `groups` hold whole parameters, not shards, of which some may belong to a network with a `sharding`; `rates` are
        their learning rates by name.
        """
        self._rates = {name: rates[name] for name in groups}
        self._grad_clip, self._sharding = grad_clip, sharding
        learned = {name: [p for p in group if p.requires_grad] for name, group in groups.items()}
        whole = {id(parameter) for group in learned.values() for parameter in group}
        if sharding is not None:
            learned = {name: [sharding.shard(parameter) for parameter in group] for name, group in learned.items()}
            sharding.optimisers.append(self)
        self.parameters = [parameter for group in learned.values() for parameter in group]
        self._whole = [parameter for parameter in self.parameters if id(parameter) in whole]
        self._shards = [parameter for parameter in self.parameters if id(parameter) not in whole]
        self._adams: list[LightAdam] = []
        for part in (part for part in (self._whole, self._shards) if part):
            wanted = {id(parameter) for parameter in part}
            described = [
                {"params": [p for p in group if id(p) in wanted], "name": name, "lr": self._rates[name]}
                for name, group in learned.items()
            ]
            self._adams.append(LightAdam(described, betas=(0.9, 0.95), eps=1e-8))

    def zero_grad(self) -> None:
        if self._sharding is not None:
            self._sharding.drop_gradients()
        for adam in self._adams:
            adam.zero_grad()

    def step(self, ranks: Ranks, share: float = 1.0, weight: float = 1.0) -> float:
        """Average gradients over ranks, clip them, take a step, and return the gradient's norm.

        `share` is a factor on the learning rates; `weight` that of this rank's gradients, such as the number of entries
        its mean loss was taken over.

        Raises:
            FloatingPointError: the gradient is NaN or infinite.
        """
        if self._sharding is not None:
            self._sharding.reduce(weight)
        for parameter in self._whole:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self._whole or self._sharding is None:
            ranks.average_gradients(self._whole, weight)
        norm = nn.utils.get_total_norm([p.grad for p in self._whole if p.grad is not None])
        if self._sharding is not None:
            spread = self._sharding.norm([p.grad for p in self._shards if p.grad is not None])
            norm = torch.linalg.vector_norm(torch.stack([norm.to(spread.device), spread]))
        if not torch.isfinite(norm):
            raise FloatingPointError("The gradient is not a number: lower algo.lr, or look at the metrics before.")
        nn.utils.clip_grads_with_norm_(self._whole, self._grad_clip, norm)
        nn.utils.clip_grads_with_norm_(self._shards, self._grad_clip, norm)
        for adam in self._adams:
            for group in adam.param_groups:
                group["lr"] = self._rates[group["name"]] * share
            adam.step()
        if self._sharding is not None:
            self._sharding.gather()
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Return this rank's own Adam moments and steps as tensors, named by the position of the parameter.

        `shards` returns the moments of shards.
        """
        moments = self.shards()
        return {name: value for name, value in self._state().items() if name not in moments}

    def shards(self, everything: bool = False) -> dict[str, Tensor]:
        """Return the existing Adam moments that are sharded over ranks, as DTensors, named by the parameter's position.

        With `everything`, include the moments of whole parameters.
        """
        wanted = {id(parameter) for parameter in (self.parameters if everything else self._shards)}
        indices = {index for index, parameter in enumerate(self.parameters) if id(parameter) in wanted}
        names = {f"{index}/{name}" for index in indices for name in _MOMENTS}
        return {name: value for name, value in self._state().items() if name in names}

    def make_moments(self, names: Collection[str]) -> dict[str, Tensor]:
        """Create missing zero moments under these names, and return them; names without a parameter are skipped.

        Adam assumes that a parameter with any state has been trained: create only moments that will be filled, together
        with the step.
        """
        known = {
            f"{index}/{name}": (self.parameters[index], name)
            for index in range(len(self.parameters))
            for name in _MOMENTS
        }
        made = {name: known[name] for name in names if name in known}
        return {
            name: self._state_of(parameter).setdefault(moment, torch.zeros_like(parameter))
            for name, (parameter, moment) in made.items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state`; whole moments of sharded parameters are accepted, too."""
        for key, value in state.items():
            index, name = key.split("/")
            parameter = self.parameters[int(index)]
            placed = value.clone() if name == "step" else value.to(parameter.device, copy=True)
            if name != "step" and self._sharding is not None and self._is_shard(parameter):
                placed = self._sharding.part(value, parameter.detach())
            self._state_of(parameter)[name] = placed
        if self._sharding is None:  # shards are read and checked separately
            for parameter in self.parameters:
                _check_moments(parameter, self._state_of(parameter))

    def _is_shard(self, parameter: nn.Parameter) -> bool:
        return any(parameter is shard for shard in self._shards)

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        return self._adams[-1 if self._is_shard(parameter) else 0].state[parameter]

    def _state(self) -> dict[str, Tensor]:
        return {
            f"{index}/{name}": torch.as_tensor(value)
            for index, parameter in enumerate(self.parameters)
            for name, value in self._state_of(parameter).items()
        }


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _check_moments(parameter: nn.Parameter, state: Mapping[str, Tensor]) -> None:
    """Check that a parameter has no state yet, or a step and both moments of its shape; else raise `UserError`.

    Both moments may be missing, as shards add them afterwards.
    """
    if not state:
        return
    step, moments = state.get("step"), [state[name] for name in _MOMENTS if name in state]
    sound = step is not None and step.numel() == 1 and bool(step.isfinite().all()) and float(step) >= 0
    sound = sound and len(moments) in (0, len(_MOMENTS))
    for moment in moments:
        sound = sound and moment.shape == parameter.shape and moment.is_floating_point()
        sound = sound and bool(moment.isfinite().all())
    if not sound:
        problem = "is not of its shape, not whole, or not finite"
        message = f"the optimiser's state of a parameter {tuple(parameter.shape)} {problem}"
        raise UserError(message, code="checkpoint-state-mismatch")
