"""Actors and rollouts small enough to follow: a table of log-probabilities, and a pocket network of a few thousand."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.actors.critics import make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.interfaces.policy import Actor, Evaluation, NoiseKeys, Trace
from embodied_rl.interfaces.sim import Camera, Episode, Observation, SimulatorSpec, Source, StepResult, Task
from embodied_rl.mathematics.flow.sampler import FlowNoise, FlowSDE, Sampler
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch
from embodied_rl.training.algorithms.clipped import ClippedConfig, ClippedUpdate
from embodied_rl.training.algorithms.grpo import GRPO, GRPOConfig
from embodied_rl.training.algorithms.ppo import PPO, PPOConfig
from embodied_rl_policies.pocket import Pocket

EXECUTED, MODEL_DIM = 2, 3
SMALL = Pocket.Config(width=16, layers=1, heads=2, horizon=3, keypoints=4, stem_channels=8)
SPEC = SimulatorSpec(
    cameras=(Camera("front", 16, 16),),
    state_names=("x", "y"),
    action_names=("dx", "dy"),
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    control_hz=10,
    horizon=20,
    tasks=(Task("left", "go"), Task("right", "go")),
    words=("go", "left", "right"),
    privileged_names=("goal_x", "goal_y", "clock"),
)


class Table(Actor):
    """An actor whose log-probabilities are its parameters: row r of a batch has `gap[r] + theta[r]`."""

    def __init__(self, rows: int, executed: int = EXECUTED, width: int = 2) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(rows, executed, width))
        self.critic = None

    def evaluate(self, trace: Trace) -> Evaluation:
        log_prob = trace["gap"] + self.theta[trace["row"]]
        return Evaluation(log_prob, 2 * self.theta[trace["row"]], torch.zeros(len(log_prob)))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        return {"actor": [self.theta]}


def table_batch(gap: Tensor, advantage: Tensor, mask: Tensor | None = None) -> Batch:
    """A batch that `Table` evaluates with log-ratios `gap` [B, Hx, D']."""
    rows = torch.arange(len(gap))
    everything = torch.ones(gap.shape[:2], dtype=torch.bool)
    return Batch(
        {"gap": gap, "row": rows}, torch.zeros_like(gap), everything if mask is None else mask, advantage, rows
    )


def table_gradient(gap: Tensor, advantage: Tensor, mask: Tensor | None = None, **settings: Any) -> Tensor:
    """Gradient [B, Hx, D'] of one full-batch update on the log-probabilities."""
    actor = Table(*gap.shape)
    update = make_update(actor, **settings)
    update.run([table_batch(gap, advantage, mask)], 0)
    assert actor.theta.grad is not None
    return actor.theta.grad


def make_update(actor: Actor, ranks: Ranks | None = None, seed: int = 0, **settings: Any) -> ClippedUpdate:
    """One epoch of one minibatch without gradient clipping, unless told otherwise."""
    plain: dict[str, Any] = {"epochs": 1, "minibatch": 10**6, "grad_clip": 1e9, "warmup_updates": 0, "target_kl": None}
    return ClippedUpdate(ClippedConfig(**(plain | settings)), actor, ranks or Ranks(), seed, 100)


def make_sampler(name: str) -> Sampler:
    """ "hybrid", "full" or "noise", with three denoise steps."""
    return FlowNoise(3, 0.05, 0.3, SMALL.width, MODEL_DIM) if name == "noise" else FlowSDE(3, 0.7, layers=name)


def make_actor(sampler: str = "hybrid", critic: str = "privileged", **options: Any) -> FlowActor:
    """A small pocket none of whose weights is zero, executing two of three actions."""
    torch.manual_seed(0)
    embodiment = Embodiment.of_simulator(SPEC, EXECUTED, token_length=3)
    auxiliary = SPEC.privileged_names[:2] if options.pop("auxiliary", False) else ()
    backbone = Pocket(SMALL, MODEL_DIM, 2, ("front",), (16, 16), len(embodiment.vocabulary), 3, auxiliary)
    sizes = {"privileged_dim": len(SPEC.privileged_names), "context_dim": SMALL.width, "feature_dim": SMALL.width}
    head = make_critic(critic, hidden=(16,), detach=options.pop("detach", True), **sizes)
    actor = FlowActor(
        backbone, make_sampler(sampler), head, embodiment, privileged_names=SPEC.privileged_names, **options
    )
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return actor


def observe(n: int, random: np.random.Generator) -> Observation:
    """n random observations."""
    return Observation(
        images={"front": random.integers(0, 256, (n, 16, 16, 3), np.uint8)},
        state=random.normal(size=(n, 2)).astype(np.float32),
        instruction=tuple(random.choice(["go left", "go right"], n)),
        privileged=random.normal(size=(n, 3)).astype(np.float32),
    )


def make_rollout(actor: Actor, decisions: int = 4, num_envs: int = 5, seed: int = 0, group_size: int = 1) -> Rollout:
    """Random experience: partial chunks, both kinds of ends, a human's actions, and two lost rows of environment 1.

    Environment 0 has whole chunks of the policy's own actions, and its episode does not end.
    """
    random, columns = np.random.default_rng(seed), torch.arange(num_envs)
    rollout = Rollout.allocate(actor, decisions, num_envs)
    rollout.clear()
    for row in range(decisions):
        episodes = [Episode(column, column % 2, column, group=column // group_size) for column in range(num_envs)]
        keys = NoiseKeys(seed, np.arange(num_envs), np.full(num_envs, row))
        with torch.no_grad():
            decision = actor.act(observation := observe(num_envs, random), keys, explore=True)
        rollout.write_decision(row, columns, decision, episodes, observation, keys)
        rollout.write_result(row, columns, _result(num_envs, random), np.arange(num_envs))
    rollout.last_value[:] = torch.from_numpy(random.normal(size=num_envs))
    rollout.final_value[:] = torch.where(rollout.truncated, torch.randn(decisions, num_envs), 0)
    rollout.terminated[0, 1] = True
    rollout.valid[1:3, 1] = False
    return rollout


def _result(n: int, random: np.random.Generator) -> StepResult:
    steps = random.integers(1, EXECUTED + 1, n)
    source = random.choice([Source.POLICY, Source.POLICY, Source.HUMAN], (n, EXECUTED)).astype(np.uint8)
    steps[0], source[0] = EXECUTED, Source.POLICY
    terminated, truncated = random.random(n) < 0.2, random.random(n) < 0.2
    terminated[0] = truncated[0] = False
    return StepResult(
        reward=random.normal(size=(n, EXECUTED)).astype(np.float32),
        success=random.random((n, EXECUTED)) < 0.5,
        steps=steps,
        executed=np.zeros((n, EXECUTED, 2), np.float32),
        source=source,
        terminated=terminated,
        truncated=truncated,
        observation=observe(n, random),
    )


def split(rollout: Rollout, parts: list[slice]) -> list[Rollout]:
    """The environments of each rank."""
    fields = {name: tensor for name, tensor in rollout.tensors().items() if not name.startswith("trace/")}
    return [
        dataclasses.replace(
            deepcopy(rollout),
            trace={name: tensor[:, part].clone() for name, tensor in rollout.trace.items()},
            **{name: tensor[part] if name == "last_value" else tensor[:, part] for name, tensor in fields.items()},
        )
        for part in parts
    ]


class ThreadRanks(Ranks):
    """One of several ranks that are threads of this process."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, shared: dict[int, Any]) -> None:
        self.rank, self.size, self._barrier, self._shared = rank, size, barrier, shared

    def gather(self, value: Any) -> list[Any]:
        self._barrier.wait(60)
        self._shared[self.rank] = deepcopy(value)
        self._barrier.wait(60)
        return [self._shared[rank] for rank in range(self.size)]

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            tensor.copy_(torch.stack(self.gather(tensor)).sum(dim=0))

    def average_gradients(self, parameters: Any, weight: float = 1.0) -> None:
        learned = list(parameters)
        parts = self.gather([weight * parameter.grad for parameter in learned])
        total = sum(self.gather(weight))
        for parameter, *gradients in zip(learned, *parts, strict=True):
            parameter.grad = sum(gradients) / max(total, 1e-12)


def on_ranks(function: Callable[[Ranks], Any], size: int = 2) -> list[Any]:
    """What `function(ranks)` gives on each of several ranks."""
    barrier, shared, results = threading.Barrier(size), {}, [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadRanks(rank, size, barrier, shared))
        except BaseException as error:  # noqa: BLE001  the caller raises it
            barrier.abort()
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def weights(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def changed(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Names of the parameters that are not what they were, to the bit."""
    return {name for name, parameter in module.named_parameters() if not torch.equal(parameter, before[name])}


def make_ppo(actor: Any, ranks: Ranks | None = None, **settings: Any) -> PPO:
    """Without warm-up, early stop or gradient clipping, and with a short critic, unless told otherwise."""
    plain = {"critic_warmup": 0, "critic_steps": 2, "minibatch": 8, "warmup_updates": 0, "target_kl": None, "lr": 0.01}
    return PPO(PPOConfig(**(plain | settings)), actor, ranks or Ranks(), 0, 100)


def unlearnable(rollout: Rollout) -> Tensor:
    """bool [T, N, Hx]: actions that were not executed, not the policy's own, or in rows that do not count."""
    executed = torch.arange(rollout.executed) < rollout.steps[..., None]
    return ~(executed & (rollout.source == int(Source.POLICY)) & rollout.valid[..., None])


def spoil(rollout: Rollout) -> Rollout:
    """The same experience with other numbers wherever nobody may look."""
    spoilt = deepcopy(rollout)
    noise = torch.Generator().manual_seed(9)
    never, executed = unlearnable(rollout), torch.arange(rollout.executed) < rollout.steps[..., None]
    spoilt.log_prob[never] += 3
    # What is drawn is [T, N, S, H, D]; its executed actions are the first of H.
    drawn = spoilt.trace["flow/x_next"][:, :, :, : rollout.executed].movedim(3, 2)
    drawn[never] += torch.randn(drawn[never].shape, generator=noise)
    spoilt.trace["flow/x_next"][:, :, :, rollout.executed :] += 5
    spoilt.reward[~executed] += 7
    spoilt.success[~executed] ^= True
    spoilt.source[~executed] = int(Source.POLICY)
    spoilt.final_value[~rollout.truncated | rollout.terminated] += 11
    lost = ~rollout.valid
    for tensor in (*spoilt.trace.values(), spoilt.log_prob, spoilt.value, spoilt.reward, spoilt.final_value):
        tensor[lost] = torch.nan if tensor.is_floating_point() else 1
    return spoilt


TALL = 3


class TableActor(Table):
    """A `Table` that a rollout can be allocated for."""

    def trace_spec(self) -> dict:
        return {"gap": (tuple(self.theta.shape[1:]), torch.float32), "row": ((), torch.int64)}

    def log_prob_shape(self) -> tuple[int, ...]:
        return tuple(self.theta.shape[1:])


def make_grpo(actor: Any, ranks: Ranks | None = None, **settings: Any) -> GRPO:
    """One epoch of one minibatch without gradient clipping, in groups of two."""
    plain = {"epochs": 1, "minibatch": 10**6, "grad_clip": 1e9, "warmup_updates": 0, "target_kl": None, "group_size": 2}
    return GRPO(GRPOConfig(**(plain | settings)), actor, ranks or Ranks(), 0, 100)


def episodes(outcomes: list[float], lengths: list[int], group_size: int = 2) -> tuple[TableActor, Rollout]:
    """One episode an environment, with its return and its control steps, two to a decision, at most three decisions."""
    count = len(outcomes)
    actor = TableActor(TALL * count)
    rollout = Rollout.allocate(actor, TALL, count)
    rollout.clear()
    rollout.trace["row"][:] = torch.arange(TALL * count).view(TALL, count)
    for env, (outcome, length) in enumerate(zip(outcomes, lengths, strict=True)):
        decisions = -(-length // 2)
        rollout.valid[:decisions, env] = True
        rollout.steps[:decisions, env] = torch.tensor([2] * (length // 2) + [1] * (length % 2))
        rollout.source[:decisions, env] = 0
        rollout.group[:decisions, env] = env // group_size
        rollout.terminated[decisions - 1, env] = True
        rollout.reward[decisions - 1, env, (length - 1) % 2] = outcome
    return actor, rollout
