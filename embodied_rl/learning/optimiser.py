"""Adam over named groups of parameters, averaged over ranks, with state that is plain tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from embodied_rl.runtime.collective import Ranks


class Optimiser:
    """Adam with one learning rate a group and one gradient norm over all groups (betas .9, .95 as in pi_RL)."""

    def __init__(self, groups: Mapping[str, list[nn.Parameter]], rates: Mapping[str, float], grad_clip: float) -> None:
        self._rates = {name: rates[name] for name in groups}
        self._grad_clip = grad_clip
        self.parameters = [parameter for group in groups.values() for parameter in group if parameter.requires_grad]
        described = [
            {"params": [parameter for parameter in group if parameter.requires_grad], "name": name, "lr": rates[name]}
            for name, group in groups.items()
        ]
        self._adam = torch.optim.Adam(described, betas=(0.9, 0.95), eps=1e-8)

    def zero_grad(self) -> None:
        self._adam.zero_grad()

    def step(self, ranks: Ranks, share: float = 1.0, weight: float = 1.0) -> float:
        """Average gradients over ranks, clip and step; returns the gradient's norm.

        Args:
            ranks: who else has gradients.
            share: of the learning rates.
            weight: of this rank's gradients, such as the number of entries its mean loss was taken over.

        Raises:
            FloatingPointError: the gradient is not a number.
        """
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        ranks.average_gradients(self.parameters, weight)
        norm = nn.utils.clip_grad_norm_(self.parameters, self._grad_clip)
        if not torch.isfinite(norm):
            raise FloatingPointError("The gradient is not a number: lower algo.lr, or look at the metrics before.")
        for group in self._adam.param_groups:
            group["lr"] = self._rates[group["name"]] * share
        self._adam.step()
        return float(norm)

    def state(self) -> dict[str, Tensor]:
        """Adam's moments as tensors, named by the position of their parameter."""
        return {
            f"{index}/{name}": torch.as_tensor(value)
            for index, parameter in enumerate(self.parameters)
            for name, value in self._adam.state[parameter].items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        for key, value in state.items():
            index, name = key.split("/")
            parameter = self.parameters[int(index)]
            self._adam.state[parameter][name] = (
                value.clone() if name == "step" else value.to(parameter.device, copy=True)
            )
