"""A very small actor with outputs that do not depend on the rest of the batch, to the bit."""

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import TensorSpec
from embodied_rl.interfaces.policy import Actor, Decision, Evaluation, NoiseKeys, Trace
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec

INITIAL_STD = 0.5


class RowwiseFakeActor(Actor):
    """A linear Gaussian policy on state and instruction, with a linear critic that also takes privileged state.

    `act` and `value` compute one row at a time, each in separate memory, so that neither batching nor alignment can
    change a bit; `evaluate` is batched. It can learn: on `FakeSimulator` the policy gets better as velocity_x follows
    the words "left" and "right".

    Args:
        spec: of the simulator.
        executed: Hx, actions of a chunk.
        seed: of the initial weights.
        seconds: extra seconds that each call of `act` takes.
    """

    def __init__(self, spec: SimulatorSpec, executed: int = 4, seed: int = 0, seconds: float = 0.0):
        super().__init__()
        self.simulator, self.executed, self.seconds = spec, executed, seconds
        self._inputs = len(spec.state_names) + len(spec.words)
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(0.1 * torch.randn(executed * spec.action_dim, self._inputs, generator=generator))
        self.log_std = nn.Parameter(torch.full((executed, spec.action_dim), math.log(INITIAL_STD)))
        privileged = len(spec.privileged_names)
        self.critic_weight = nn.Parameter(0.1 * torch.randn(1, self._inputs + privileged, generator=generator))

    def act(
        self,
        observation: Observation,
        keys: NoiseKeys,
        explore: bool,
        prefix: Array | None = None,
        committed: Array | None = None,
    ) -> Decision:
        assert prefix is None, "the fake policy continues no committed actions"
        time.sleep(self.seconds)
        trace = self._inputs_of(observation)
        n, shape = len(observation), (self.executed, self.simulator.action_dim)
        mean = torch.stack([self._mean(trace["input/features"][row : row + 1].clone())[0] for row in range(n)])
        noise = self._noise(keys, shape) if explore else torch.zeros(n, *shape)
        trace["actions"] = mean + self.log_std.exp() * noise
        clipped = np.clip(trace["actions"].detach().numpy(), self.simulator.action_low, self.simulator.action_high)
        return Decision(
            actions=clipped.astype(np.float32),
            trace=trace,
            log_prob=self._log_prob(trace["actions"], mean),
            value=self._values(trace),
            version=torch.full((n,), self.version, dtype=torch.int64),
        )

    def value(
        self,
        observation: Observation,
        keys: NoiseKeys,
        prefix: Array | None = None,
        committed: Array | None = None,
    ) -> Tensor:
        return self._values(self._inputs_of(observation))

    def evaluate(self, trace: Trace) -> Evaluation:
        mean = self._mean(trace["input/features"])
        log_prob, std = self._log_prob(trace["actions"], mean), self.log_std.exp().expand_as(mean)
        entropy = self.log_std + 0.5 * math.log(2 * math.pi * math.e)
        return Evaluation(log_prob, entropy.expand_as(log_prob), self._critic(trace), mean=mean, std=std)

    def trace_spec(self) -> TensorSpec:
        spec = self.simulator
        images = {f"input/image/{camera.name}": camera for camera in spec.cameras}
        return {
            **{name: ((camera.height, camera.width, 3), torch.uint8) for name, camera in images.items()},
            "input/features": ((self._inputs,), torch.float32),
            "input/privileged": ((len(spec.privileged_names),), torch.float32),
            "actions": ((self.executed, spec.action_dim), torch.float32),
        }

    def log_prob_shape(self) -> tuple[int, ...]:
        return self.executed, self.simulator.action_dim

    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        return {"actor": [self.weight, self.log_std], "critic": [self.critic_weight]}

    def _inputs_of(self, observation: Observation) -> Trace:
        privileged = observation.privileged
        if privileged is None:
            privileged = np.zeros((len(observation), len(self.simulator.privileged_names)), np.float32)
        words = [[float(word in text.split()) for word in self.simulator.words] for text in observation.instruction]
        return {
            **{f"input/image/{name}": torch.from_numpy(image) for name, image in observation.images.items()},
            "input/features": torch.from_numpy(
                np.concatenate([observation.state, np.array(words, np.float32)], axis=1).astype(np.float32)
            ),
            "input/privileged": torch.from_numpy(privileged),
        }

    def _mean(self, features: Tensor) -> Tensor:
        return (features @ self.weight.T).reshape(-1, self.executed, self.simulator.action_dim)

    def _critic(self, trace: Trace) -> Tensor:
        return (torch.cat([trace["input/features"], trace["input/privileged"]], dim=1) @ self.critic_weight.T)[:, 0]

    def _values(self, trace: Trace) -> Tensor:
        rows = range(len(trace["input/features"]))
        return torch.cat([self._critic({name: x[row : row + 1].clone() for name, x in trace.items()}) for row in rows])

    def _noise(self, keys: NoiseKeys, shape: tuple[int, int]) -> Tensor:
        pairs = zip(keys.episode, keys.decision, strict=True)
        generators = [np.random.default_rng((keys.seed, episode, decision)) for episode, decision in pairs]
        return torch.from_numpy(np.stack([generator.normal(size=shape) for generator in generators]).astype(np.float32))

    def _log_prob(self, action: Tensor, mean: Tensor) -> Tensor:
        standard = (action - mean) / self.log_std.exp()
        return -0.5 * standard.square() - self.log_std - 0.5 * math.log(2 * math.pi)


class StepActor(Actor):
    """An actor with parameters of its own for each step of a rollout, so that a step that counts shows in them.

    Its log-probabilities, float32 [T·N, Hx, D'], are `steps`, as are the means of its normal distributions.
    """

    def __init__(self, rows: int, shape: Sequence[int]) -> None:
        super().__init__()
        self.steps, self.values = nn.Parameter(torch.zeros(rows, *shape)), nn.Parameter(torch.zeros(rows))

    @property
    def network(self) -> nn.Module:
        return self

    def evaluate(self, trace: Trace) -> Evaluation:
        steps = self.steps[trace["row"]]
        return Evaluation(steps, torch.zeros_like(steps), self.values[trace["row"]], None, None, steps, steps * 0 + 1)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"actor": [self.steps], "critic": [self.values]}
