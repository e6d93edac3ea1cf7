"""The heads: small models that learn a scorer's labels, after ONI (arXiv:2410.23022).

Shapes: n observations, D bytes of their inputs.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from statistics import fmean
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.heads.head_inputs import HeadInputs
from embodied_rl.judge.heads.labels import Labels
from embodied_rl.schema import DistillNode

WIDTH = 128
"""Of the two hidden layers."""
TIE = 1e-6
"""Scores that differ by less are equal: each is the better one with probability one half."""
_BYTES = 16
"""Of a hash."""


class Head(ABC):
    """Predicts scores. It is trained by `learn` alone; equal calls give equal bits.

    Args:
        inputs: how observations are packed.
        seed: of the run.
        settings: of the mode.

    Attributes:
        calibrated: whether its predictions mean the same as the scores; else only their order does.
    """

    calibrated: ClassVar[bool]

    @abstractmethod
    def __init__(self, inputs: HeadInputs, seed: int, settings: DistillNode) -> None: ...

    @abstractmethod
    def predict(self, inputs: Array) -> Array:
        """Return predictions within 0 … 1, float64 [n]; NaN where it has none."""

    @abstractmethod
    def learn(self, fresh: Labels, kept: Labels, version: int) -> float:
        """Learn, and return the mean loss; NaN where there is none.

        Args:
            fresh: labels that have just come, each observation once.
            kept: all labels that are kept, with the fresh ones.
            version: of the head until now; what is drawn depends on it.
        """

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Return copies of the arrays that `load` needs to continue exactly."""

    @abstractmethod
    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""


class HashHead(Head):
    """Table from the hash of `HeadInputs.coarsen` to the mean score. The entry learned least recently is dropped first.

    ONI's table counts what is unknown as 0. Here it has no prediction, so that the last potential of its episode is
    held.
    """

    calibrated = True

    def __init__(self, inputs: HeadInputs, seed: int, settings: DistillNode) -> None:
        self._inputs, self._most = inputs, settings.entries
        self._table: dict[bytes, tuple[float, int]] = {}

    def predict(self, inputs: Array) -> Array:
        found = (self._table.get(key, (math.nan, 1)) for key in self._hash(inputs))
        return np.array([total / count for total, count in found], np.float64)

    def learn(self, fresh: Labels, kept: Labels, version: int) -> float:
        for key, value in zip(self._hash(fresh.inputs), fresh.value.tolist(), strict=True):
            total, count = self._table.pop(key, (0.0, 0))
            self._table[key] = (total + value, count + 1)
        while len(self._table) > self._most:
            del self._table[next(iter(self._table))]
        return math.nan

    def _hash(self, inputs: Array) -> list[bytes]:
        return [hashlib.blake2b(row.tobytes(), digest_size=_BYTES).digest() for row in self._inputs.coarsen(inputs)]

    def state(self) -> dict[str, Array]:
        """Return the entries in the order in which they were learned."""
        keys = np.frombuffer(b"".join(self._table), np.uint8).reshape(-1, _BYTES).copy()
        sums = np.array([total for total, _ in self._table.values()], np.float64)
        return {"keys": keys, "sums": sums, "counts": np.array([count for _, count in self._table.values()], np.int64)}

    def load(self, state: Mapping[str, Array]) -> None:
        values = zip(state["sums"].tolist(), state["counts"].tolist(), strict=True)
        self._table = dict(zip((row.tobytes() for row in state["keys"]), values, strict=True))


class NetworkHead(Head):
    """Small network, features → one number, with Adam. It neither reads nor changes torch's global random state."""

    def __init__(self, inputs: HeadInputs, seed: int, settings: DistillNode) -> None:
        self._inputs, self._seed, self._settings = inputs, seed, settings
        sizes = [inputs.features, WIDTH, WIDTH, 1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = [nn.Linear(sizes[place], sizes[place + 1]) for place in range(3)]
        self._network = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
        self._adam = torch.optim.Adam(self._network.parameters(), settings.rate)

    @torch.no_grad()
    def evaluate(self, inputs: Array) -> Array:
        """Return the network's outputs, float64 [n]."""
        return self._forward(inputs).double().numpy()

    def _forward(self, inputs: Array) -> Tensor:
        return self._network(self._inputs.unpack(inputs))[:, 0]

    @abstractmethod
    def _measure(self, kept: Labels, random: np.random.Generator) -> Tensor:
        """Return the loss over a random batch of the kept labels."""

    def learn(self, fresh: Labels, kept: Labels, version: int) -> float:
        random = np.random.default_rng([self._seed, version])
        losses = []
        with torch.enable_grad():
            for _ in range(self._settings.steps):
                self._adam.zero_grad()
                loss = self._measure(kept, random)
                loss.backward()
                self._adam.step()
                losses.append(float(loss.detach()))
        return fmean(losses)

    def state(self) -> dict[str, Array]:
        tensors = dict(self._network.named_parameters())
        for number, moments in self._adam.state_dict()["state"].items():
            tensors |= {f"adam/{number}/{name}": tensor for name, tensor in moments.items()}
        return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        moments: dict[int, dict[str, Tensor]] = {}
        for name, array in state.items():
            if name.startswith("adam/"):
                _, number, moment = name.split("/")
                moments.setdefault(int(number), {})[moment] = torch.from_numpy(array.copy())
        self._adam.load_state_dict(self._adam.state_dict() | {"state": moments})
        with torch.no_grad():
            for name, weight in self._network.named_parameters():
                weight.copy_(torch.from_numpy(state[name].copy()))


class ClassifierHead(NetworkHead):
    """Minimises the cross entropy between scores and predictions.

    A score of 0 or 1 is a class; one between them is the probability of the second class, so that the prediction is the
    expected score. ONI thresholds it at one half: a potential needs no threshold.
    """

    calibrated = True

    def __init__(self, inputs: HeadInputs, seed: int, settings: DistillNode) -> None:
        super().__init__(inputs, seed, settings)
        self._learned = False

    def predict(self, inputs: Array) -> Array:
        if not self._learned:
            return np.full(len(inputs), np.nan)
        return 1 / (1 + np.exp(-self.evaluate(inputs)))

    def _measure(self, kept: Labels, random: np.random.Generator) -> Tensor:
        self._learned = True
        drawn = kept.select(random.integers(len(kept), size=self._settings.batch))
        return binary_cross_entropy_with_logits(self._forward(drawn.inputs), torch.from_numpy(drawn.value).float())

    def state(self) -> dict[str, Array]:
        return super().state() | {"learned": np.array(self._learned)}

    def load(self, state: Mapping[str, Array]) -> None:
        super().load(state)
        self._learned = bool(state["learned"])


class RankingHead(NetworkHead):
    """Minimises the Bradley-Terry loss over random pairs of labels.

    The model is that of Bradley and Terry (1952): the first of two observations is the better one with probability
    σ(u₁ - u₂). Only the order of two scores is used, so a drifting or nonlinear scale has no effect. Utilities u are
    defined up to a constant: a prediction is σ of the standardised utility, over the kept labels.
    """

    calibrated = False

    def __init__(self, inputs: HeadInputs, seed: int, settings: DistillNode) -> None:
        super().__init__(inputs, seed, settings)
        self._scale = np.full(2, np.nan)
        """Mean and standard deviation of the utilities; NaN until something was learned."""

    def predict(self, inputs: Array) -> Array:
        mean, deviation = self._scale
        return 1 / (1 + np.exp((mean - self.evaluate(inputs)) / deviation))

    def learn(self, fresh: Labels, kept: Labels, version: int) -> float:
        loss = super().learn(fresh, kept, version)
        utility = self.evaluate(kept.inputs)
        self._scale = np.array([utility.mean(), max(utility.std(), TIE)])
        return loss

    def _measure(self, kept: Labels, random: np.random.Generator) -> Tensor:
        one, other = (kept.select(random.integers(len(kept), size=self._settings.batch)) for _ in range(2))
        utility, other_utility = self._forward(np.concatenate([one.inputs, other.inputs])).chunk(2)
        better = torch.from_numpy(compare(one.value, other.value)).float()
        return binary_cross_entropy_with_logits(utility - other_utility, better)

    def state(self) -> dict[str, Array]:
        return super().state() | {"scale": self._scale.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        super().load(state)
        self._scale = state["scale"].copy()


def compare(one: Array, other: Array) -> Array:
    """Return the probability that the first of two scores is the better one: 1, 0, or 0.5 of equal ones."""
    return np.where(np.abs(one - other) <= TIE, 0.5, one > other)


HEADS: dict[str, type[Head]] = {"hash": HashHead, "classifier": ClassifierHead, "ranking": RankingHead}
