"""The small network of the heads that generalise, and how it learns.

Shapes: n observations, F features.
"""

from collections.abc import Callable, Iterator, Mapping
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.heads.base import HeadOptions

WIDTH = 128
"""Of the two hidden layers."""


class HeadNetwork:
    """Features → one number, with Adam. It neither reads nor moves torch's global random state.

    Args:
        options: sizes, and how it learns.
    """

    def __init__(self, options: HeadOptions) -> None:
        self._options = options
        sizes = [options.inputs.features, WIDTH, WIDTH, 1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            layers = [nn.Linear(sizes[place], sizes[place + 1]) for place in range(3)]
        self._network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        self._adam = torch.optim.Adam(self._network.parameters(), options.rate)

    @torch.no_grad()
    def evaluate(self, inputs: Array) -> Array:
        """Return the outputs for packed inputs, float64 [n]."""
        return self._forward(inputs).double().numpy()

    def train(self, loss: Callable[[np.random.Generator, "Forward"], Tensor], version: int) -> float:
        """Take the steps of one version, and return the mean loss.

        Args:
            loss: of a batch that it draws with the generator; computes outputs by calling its second argument.
            version: decides what is drawn.
        """
        random = np.random.default_rng([self._options.seed, version])
        found = []
        with torch.enable_grad():
            for _ in range(self._options.steps):
                self._adam.zero_grad()
                value = loss(random, self._forward)
                value.backward()
                self._adam.step()
                found.append(float(value.detach()))
        return fmean(found)

    def _forward(self, inputs: Array) -> Tensor:
        return self._network(self._options.inputs.unpack(inputs))[:, 0]

    def state(self) -> dict[str, Array]:
        """Return copies of weights and moments."""
        return {name: tensor.detach().numpy().copy() for name, tensor in self._tensors()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        moments = {name.split("/")[1] for name in state if name.startswith("adam/")}
        kept = {int(number): _part(state, f"adam/{number}/") for number in moments}
        self._adam.load_state_dict(self._adam.state_dict() | {"state": kept})
        with torch.no_grad():
            for name, weight in self._network.named_parameters():
                weight.copy_(torch.from_numpy(state[name].copy()))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._network.named_parameters()
        for number, kept in self._adam.state_dict()["state"].items():
            yield from ((f"adam/{number}/{name}", tensor) for name, tensor in kept.items())


Forward = Callable[[Array], Tensor]


def _part(state: Mapping[str, Array], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): torch.from_numpy(array.copy())
        for name, array in state.items()
        if name.startswith(prefix)
    }
