"""The interface of policies: what chooses actions, and recomputes them under newer weights to learn.

A network is a `Backbone` (`embodied_rl.interfaces.backbone`); an `Actor` makes a policy of it.

Shapes: `n` rows of a batch, `H` predicted actions of a chunk, `Hx` ≤ H executed ones, `D` action dimensions of the
model, `A` ≤ D of the simulator, `S` state dimensions, `L` instruction tokens, `F` width of the features.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import TensorSpec
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation


@dataclass(frozen=True)
class NoiseKeys:
    """The keys that determine the policy's noise, so that it depends on neither batching nor timing.

    Attributes:
        seed: seed of the run.
        episode: int64 [n], `Episode.index`.
        decision: int64 [n], decisions since the episode began.
    """

    seed: int
    episode: np.ndarray
    decision: np.ndarray

    @staticmethod
    def none(rows: int) -> "NoiseKeys":
        """Return zero keys for `rows` rows that belong to no counted episode."""
        return NoiseKeys(0, np.zeros(rows, np.int64), np.zeros(rows, np.int64))

    def __len__(self) -> int:
        return len(self.episode)


Trace = dict[str, Tensor]
"""Batch-first tensors from which `Actor.evaluate` recomputes a decision: the inputs, and what the sampler drew."""


@dataclass
class Decision:
    """One policy call for n environments.

    Attributes:
        actions: float32 [n, Hx, A] in the simulator's units, on the host; they follow the committed actions.
        trace: the tensors needed to recompute the log-probability.
        log_prob: float32 [n, Hx, D'], per element (D' = action dims × stochastic steps); masked, then reduced.
        value: float32 [n].
        version: int64 [n], version of the weights that chose the actions.
    """

    actions: np.ndarray
    trace: Trace
    log_prob: Tensor
    value: Tensor
    version: Tensor


@dataclass
class Evaluation:
    """A decision recomputed under the current weights.

    Attributes:
        log_prob: as in `Decision`, same shape and order.
        entropy: float32 [n, Hx, D'], zero if the noise is fixed.
        value: float32 [n].
        auxiliary: float32 [n, G], `Context.auxiliary`, or None.
        auxiliary_target: float32 [n, G], its targets from privileged state, or None.
        mean, std: float32 [n, Hx, D'], of the normal distributions behind `log_prob`, or None for others.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    auxiliary: Tensor | None = None
    auxiliary_target: Tensor | None = None
    mean: Tensor | None = None
    std: Tensor | None = None


class Policy(Protocol):
    """The policy interface for collectors: an `Actor`, or a proxy for an actor in another process."""

    def act(
        self,
        observation: Observation,
        keys: NoiseKeys,
        explore: bool,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
    ) -> Decision:
        """Choose a chunk for each row; see `Actor.act`."""
        ...

    def value(
        self,
        observation: Observation,
        keys: NoiseKeys,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
    ) -> Tensor:
        """Estimate the value of each row; see `Actor.value`."""
        ...


class DeployedPolicy(Protocol):
    """The policy interface for episodes in simulation or on a robot: an `Actor`, or a policy that only acts."""

    def infer(self, observation: Observation, keys: NoiseKeys) -> np.ndarray:
        """Return a chunk for each row, float32 [n, Hx, A] in the simulator's units; see `Actor.infer`."""
        ...


class Actor(nn.Module):
    """The policy interface for algorithms, collectors, evaluators and servers.

    Attributes:
        version: version of the weights, counted in updates.
        embodiment: the robot body that the network controls; an `embodied_rl.actors.embodiment.Embodiment`.
        autocast: compute matrix products in bfloat16.
        keep: the form in which traces hold an observation; see `keep_within`.
        critic_reads: the entry of a trace that the critic reads directly, so that it can learn without the network;
            None if the critic reads features of the network, or there is no critic.
        delay: d, for how many control steps committed actions are executed before those that `act` chooses. A chunk
            begins with the committed actions; `act` returns and scores the Hx entries after them, and its traces hold
            what was committed. 0: nothing is committed. To be set before a rollout, where traces are allocated; `infer`
            does not depend on it.
        prefix_trained_to: the most committed actions that the policy is trained to continue.
        random_deployed: whether the deployed policy is random, too, as a flow is by its start noise.
        observations: control steps whose observations `infer` needs; see `ImitationBackbone`. Where it is above 1,
            `infer` takes the observations of the control steps before as `earlier`, a tuple, oldest first.
    """

    version: int = 0
    embodiment: Any
    autocast: bool = False
    keep: str = "images"
    critic_reads: str | None = None
    delay: int = 0
    prefix_trained_to: int = 0
    random_deployed: bool = False
    observations: int = 1

    @property
    def network(self) -> Any:
        """Return the policy's network without sampler and critic, as saved in a policy file."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Return the device of the network."""
        return next(self.network.parameters()).device

    def infer(
        self,
        observation: Observation,
        keys: NoiseKeys | None = None,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
    ) -> np.ndarray:
        """Return a chunk for each row from the deployed policy: no trace, no value, no exploration.

        Args:
            observation: n rows.
            keys: keys of the initial noise of the chunk; None starts from the mean of the noise.
            prefix: float32 [n, p, A] in the simulator's units, p ≤ H: what is planned for the control steps from the
                observation on, such as the actions that the robot executes during inference.
            committed: int64 [n], how many of a row's p actions will be executed regardless of the new chunk; None for
                all. They are clipped to the simulator's limits. A row without any gets the plain policy.
            whole: return all H predicted actions instead of the first Hx.
            strategy: how the chunk continues the committed actions. "prefix": they are inputs of a policy that is
                trained on them, up to `prefix_trained_to`. "replacement": they replace the policy's estimate at each
                denoise step. "guided", experimental: gradients draw the estimate towards them (real-time chunking,
                arXiv:2506.07339), which takes about twice as long. The last two stay near the rest of the prefix as
                well, the less the later an action is.

        Returns:
            float32 [n, Hx, A] or [n, H, A]. It begins with the committed actions, to the bit.

        Raises:
            UserError: inputs that do not fit, or a prefix that this policy cannot continue.
        """
        if prefix is not None or whole:
            raise UserError(
                f"{type(self).__name__} cannot continue actions that are already committed.",
                code="prefix-not-supported",
            )
        return self.act(observation, keys or NoiseKeys.none(len(observation)), explore=False).actions

    def act(
        self,
        observation: Observation,
        keys: NoiseKeys,
        explore: bool,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
    ) -> Decision:
        """Choose a chunk for each row. `explore=False` is the deterministic policy that is deployed.

        Args:
            observation: n rows.
            keys: keys of the noise.
            explore: whether to draw from the policy that is trained.
            prefix: float32 [n, p, A] in the simulator's units, p ≤ `delay`: the actions that are executed before those
                that this decision returns; None for none.
            committed: int64 [n], how many of a row's p actions are committed; None for all.
        """
        raise NotImplementedError

    def value(
        self,
        observation: Observation,
        keys: NoiseKeys,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
    ) -> Tensor:
        """Estimate values float32 [n] of final and last observations, with the estimator of `act` and `evaluate`."""
        raise NotImplementedError

    def critic_value(self, recorded: Tensor) -> Tensor:
        """Compute values float32 [B] with gradients from the trace's entry `critic_reads`, without the network."""
        raise NotImplementedError

    def keep_within(self, rows: int, budget: float) -> str:
        """Set `keep` to the most useful form of which `rows` rows fit into `budget` bytes, and return it."""
        return self.keep

    def evaluate(self, trace: Trace) -> Evaluation:
        """Recompute log-probability, entropy and value of recorded decisions, with gradients."""
        raise NotImplementedError

    def trace_spec(self) -> TensorSpec:
        """Return shape and dtype of one row of each entry of `Decision.trace`; rollout buffers allocate from it.

        An entry "actions", float32 [Hx, D] in the model's units, is for algorithms that read `Rollout.actions`.
        """
        raise NotImplementedError

    def log_prob_shape(self) -> tuple[int, ...]:
        """Return (Hx, D'), the shape of one row of `Decision.log_prob`."""
        raise NotImplementedError

    def exploration(self) -> dict[str, float]:
        """Return the settings besides weights that an algorithm changes during training, such as the noise level."""
        return {}

    def explore_with(self, settings: Mapping[str, float]) -> None:
        """Apply settings that another actor's `exploration` returned."""

    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        """Return the trainable parameters: "actor", "critic", and "perception" if it has its own learning rate."""
        raise NotImplementedError
