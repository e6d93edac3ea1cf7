"""Diffusion steering (DSRL, arXiv:2506.15799): soft actor-critic over the start noise w of a frozen flow policy.

The flow's network never changes. A tanh-Gaussian policy π(w|o) chooses where its ODE starts (see
`embodied_rl.actors.start_noise`); the deployed policy starts from the centre of it. Features o are the pooled prefix of
the frozen network and, for the critics alone, the simulator's privileged state (`policy.critic=privileged`). What acts,
in rollouts and evaluations, is an exponential average of π's weights (`policy_tau`; the paper has none), which varies
less from update to update; gradients and targets are π's own.

- `variant=noise_aliased`: Q_A(o, a) over executed chunks learns by temporal differences, with a' = ODE(o', w') and
  w' ~ π. Q_W(o, w) is fitted to Q_A(o, ODE(o, w)), half of w drawn from N(0, I) within the bound and half from π. π
  maximises Q_W plus entropy. No w is stored, so that offline episodes and human corrections are learned, too.
- `variant=sac`: Q(o, w) over the stored w, by soft temporal differences. An update does not denoise. Decisions that a
  human took part in are left out, as w did not cause what followed.

Chunks are as executed: what a safety filter or a human did counts as the action of noise_aliased, and is part of the
environment for sac. After the end of an episode the critic reads the actions that were chosen and not executed, which
change nothing, as it reads whole chunks of ODE(o, w); where none were chosen, it reads the last action again. Offline
decisions with fewer control steps are joined to chunks. A truncated episode is bootstrapped with its final observation,
unless the time limit counts as its end (`train.time_limit=terminal`).

Left out: convolutional critics on images; critics over whole chunks that were not executed; the noise predictor and the
distributional critics of GR-RL (arXiv:2512.01801).

Shapes: B decisions, Hx executed actions of a chunk, A action dimensions, d entries of w, F width of the pooled prefix,
P privileged entries, K critics.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import log
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from embodied_rl.actors.critics import CriticNeed
from embodied_rl.actors.flow import START, FlowActor
from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.actors.network_actor import PRIVILEGED
from embodied_rl.actors.start_noise import StartNoiseSettings
from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Discount, Needs, join_states, split_state
from embodied_rl.interfaces.backbone import Context
from embodied_rl.interfaces.policy import Trace
from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.replay_cloning import count_shares, draw_rows
from embodied_rl.training.algorithms.replay_transitions import RowTable, Transitions, find_transitions

POOLED, OWN_STATE = "pooled", "state"
"""Entries of what is kept, beyond those of a trace: the pooled prefix, and the state in the robot's units."""


@dataclass(frozen=True)
class DSRLConfig:
    """Settings of diffusion steering."""

    variant: Literal["noise_aliased", "sac"] = "noise_aliased"
    """critics over actions, distilled to one over start noise; or critics over the start noise that was stored."""
    updates: int = at_least(0, 100)
    """optimiser steps of each critic and of the policy in an iteration."""
    updates_per_decision: float | None = at_least(0, None)
    """optimiser steps for each decision that the iteration collected, over all ranks, in place of algo.updates (the
    update-to-data ratio), which those of replay.offline_iterations still take; null: algo.updates everywhere."""
    minibatch: int = at_least(1, 128)
    """decisions of an optimiser step over all ranks."""
    warmup: int = at_least(0, 1)
    """iterations at the start that collect with start noise from N(0, I), as the frozen policy does."""
    bound: float = at_least(0.01, 2.0, at_most=100)
    """largest absolute value of an entry of the start noise."""
    shared: bool = True
    """whether all actions of a chunk start from the same noise, of as many entries as an action has."""
    hidden: int = at_least(1, 256, at_most=4096)
    """units of each of the two layers of the policy and of every critic."""
    critics: int = at_least(1, 2, at_most=64)
    """critics of an ensemble; their least value counts."""
    lr: float = at_least(0, 3e-4)
    """learning rate of the policy over start noise."""
    critic_lr: float = at_least(0, 3e-4)
    """learning rate of the critics."""
    gamma: float = at_least(0, 0.994, at_most=1)
    """discount per control step."""
    n_step: int = at_least(1, 4)
    """chunks whose rewards a target of the critics sums before it bootstraps, as they were when they were stored."""
    tau: float = at_least(0, 0.005, at_most=1)
    """part of the critics that their targets take over in each optimiser step."""
    policy_tau: float = at_least(1e-6, 0.005, at_most=1)
    """part of the learned policy that the acting one, its exponential average, takes over in each step; 1 all of it."""
    temperature: float = at_least(1e-8, 0.1)
    """weight of the entropy at the start."""
    temperature_lr: float = at_least(0, 1e-3)
    """learning rate of the logarithm of that weight; 0 keeps it."""
    target_entropy: float = -0.5
    """entropy of each entry of the start noise, in nats, that the weight is learned for; that of N(0, 1) is 1.42."""
    offline_share: float = at_least(0, 0.25, at_most=1)
    """share of a minibatch that is taken from the offline episodes (`replay.preload`), if there are some."""
    grad_clip: float = at_least(0, 10.0)
    """largest gradient norm."""


@dataclass(frozen=True)
class Seen:
    """What is known of B observations.

    Attributes:
        pooled: float32 [B, F], what the policy reads. features: float32 [B, F + P], what critics read.
        state: float32 [B, S], that relative actions are relative to.
        context: of the frozen network; None if nothing is denoised.
    """

    pooled: Tensor
    features: Tensor
    state: Tensor
    context: Context | None


@dataclass(frozen=True)
class Minibatch:
    """B decisions on the device: weight, reward and discount [B], and what the critics judge, [B, Hx·A] or w [B, d]."""

    weight: Tensor
    reward: Tensor
    discount: Tensor
    judged: Tensor
    seen: Seen
    following: Seen

    def mean(self, values: Tensor) -> Tensor:
        """Return the weighted mean of values [..., B] over decisions."""
        return (values * self.weight).mean()


class Ensemble(nn.Module):
    """K networks that estimate returns from the same inputs."""

    def __init__(self, count: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.members = nn.ModuleList()
        for _ in range(count):
            layers: list[nn.Module] = []
            for before in (inputs, hidden):
                layers += [nn.Linear(before, hidden), nn.LayerNorm(hidden), nn.SiLU()]
            self.members.append(nn.Sequential(*layers, nn.Linear(hidden, 1)))

    def forward(self, features: Tensor, judged: Tensor) -> Tensor:
        """Compute float32 [K, B] from features [B, F + P] and what is judged, [B, …]."""
        inputs = torch.cat([features, judged], dim=-1)
        return torch.stack([member(inputs).squeeze(-1) for member in self.members])


class DSRL:
    """Some optimiser steps an iteration: critics, policy over start noise, entropy temperature."""

    Config = DSRLConfig

    @staticmethod
    def needs(config: DSRLConfig) -> Needs:
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        return Needs(
            learns_from="replay",
            critic=True,
            discount=Discount(config.gamma),
            updates_per_decision=config.updates_per_decision,
            minibatch=config.minibatch,
            stores=(START,) if config.variant == "sac" else (),
            start_noise=StartNoiseSettings(config.bound, config.shared, config.hidden),
        )

    def __init__(self, config: DSRLConfig, actor: FlowActor, ranks: Ranks, seed: int, iterations: int) -> None:
        assert actor.start_noise is not None, "an actor built for `needs` has one"
        self.config, self.actor, self.ranks, self.seed = config, actor, ranks, seed
        self._acting, self._aliased = actor.start_noise, config.variant == "noise_aliased"
        self.policy = actor.start_noise if config.policy_tau == 1 else deepcopy(actor.start_noise)
        self._reads_truth = actor.critic is not None and actor.critic.needs == CriticNeed.PRIVILEGED
        actor.critic = None  # critics of actions or of noise take its place, which are no part of the policy
        robot, features = actor.embodiment, actor.network.spec.context_dim
        features += len(actor.privileged_names) * self._reads_truth
        judged = robot.executed * len(robot.action_names) if self._aliased else self.policy.size
        self.critics = Ensemble(config.critics, features + judged, config.hidden).to(actor.device)
        self.targets = deepcopy(self.critics).requires_grad_(False)
        self.noise_critics = self.critics
        if self._aliased:
            self.noise_critics = Ensemble(config.critics, features + self.policy.size, config.hidden).to(actor.device)
        self.log_temperature = nn.Parameter(torch.tensor(log(config.temperature), device=actor.device))
        learned = {"critics": self.critics, "noise_critics": self.noise_critics, "policy": self.policy}
        groups = {name: list(module.parameters()) for name, module in learned.items()}
        groups["temperature"] = [self.log_temperature]
        rates = {"policy": config.lr, "temperature": config.temperature_lr}
        self._optimisers = {
            name: Optimiser({name: group}, {name: rates.get(name, config.critic_lr)}, config.grad_clip)
            for name, group in groups.items()
            if name != "noise_critics" or self._aliased
        }

    def prepare(self, iteration: int) -> None:
        """Draw start noise from N(0, I) in the first iterations, and then from the policy over it."""
        self.actor.explore_with({"plain_start": float(iteration < self.config.warmup)})

    def update(self, replay: Replay, iteration: int) -> dict[str, float]:
        """Learn from decisions of all stored episodes; return figures for the log."""
        known = find_transitions(replay, self.actor.embodiment.executed, self.config.gamma, self.config.n_step)
        known = known if self._aliased else known.select(np.flatnonzero(~known.human))
        shares, share = count_shares(known.where, self.config.offline_share, self.ranks, replay.owned)
        mixed = (self.seed * 1_000_003 + iteration) * 257 + self.ranks.rank
        draws, generator = np.random.default_rng(mixed), torch.Generator().manual_seed(mixed % 2**63)
        found = sum(len(replay.list_episodes(number)) for number in range(len(replay.storages)))
        counts = torch.tensor([found, len(known), replay.collected], dtype=torch.float64)
        self.ranks.sum_([counts])
        episodes, everywhere, collected = counts.tolist()
        updates = self._count_updates(iteration, collected) if everywhere else 0
        size, look = max(1, self.config.minibatch // self.ranks.size), self._make_look(replay, known)
        names = ("critic_loss", *(["noise_critic_loss"] if self._aliased else []), "policy_loss", "value", "entropy")
        totals: dict[str, float] = dict.fromkeys(names, 0.0)
        for _ in range(updates):
            rows, weight = draw_rows(known.where, size, share, shares, draws, replay.owned)
            batch = None
            if len(rows):
                weight = weight * np.float32(len(rows) / size)
                batch = self.read_minibatch(replay, known.select(rows), weight, look)
            for name, value in self._step(batch, generator).items():
                totals[name] += value / updates
        rest = {"temperature": float(self.log_temperature.detach().exp()), "episodes": episodes, "rows": everywhere}
        return totals | rest | {"steps": float(updates)}

    def _count_updates(self, iteration: int, collected: float) -> int:
        """Return the optimiser steps of an iteration; what is rounded in one is made up for by the next."""
        ratio = self.config.updates_per_decision
        if ratio is None or not collected:
            return self.config.updates
        return int(ratio * collected * (iteration + 1)) - int(ratio * collected * iteration)

    def read_minibatch(
        self, replay: Replay, chosen: Transitions, weight: Array, look: Callable[[Array], Seen]
    ) -> Minibatch:
        """Return B decisions on the device, of `weight` float32 [B]; `look` reads observations."""
        device, robot, seen = self.actor.device, self.actor.embodiment, look(chosen.where)
        if self._aliased:
            actions = robot.model_actions(chosen.actions, seen.state, self.actor.network.spec.action_dim)
            judged = actions[..., : len(robot.action_names)].flatten(1)
        else:
            judged = torch.from_numpy(replay.read_field(f"trace/{START}", chosen.where))
        numbers = {"weight": weight, "reward": chosen.reward, "discount": chosen.discount}
        columns = {name: torch.from_numpy(each).to(device) for name, each in numbers.items()}
        return Minibatch(**columns, judged=judged.to(device), seen=seen, following=look(chosen.following))

    def critic_target(self, batch: Minibatch, generator: torch.Generator) -> Tensor:
        """Compute what the critics learn, float32 [B]: reward plus the discounted value of what π does next."""
        with torch.no_grad():
            noise, log_prob = self._draw(batch.following, generator)
            judged = self.execute(batch.following, noise) if self._aliased else noise
            value = self.targets(batch.following.features, judged).amin(0)
            value = value if self._aliased else value - self.log_temperature.exp() * log_prob
            return batch.reward + batch.discount * value

    def execute(self, seen: Seen, noise: Tensor) -> Tensor:
        """Return the chunks that start noise [B, d] leads to, as executed, float32 [B, Hx·A] in the model's units."""
        assert seen.context is not None, "only noise_aliased denoises"
        robot, state = self.actor.embodiment, seen.state
        actions = robot.actions(self.actor.denoise(seen.context, self.policy.expand(noise)), state.numpy())
        units = robot.model_actions(actions, state, self.actor.network.spec.action_dim)
        return units[..., : len(robot.action_names)].flatten(1).to(self.actor.device)

    def _step(self, batch: Minibatch | None, generator: torch.Generator) -> dict[str, float]:
        """Take a step of all optimisers on this rank's decisions; return its parts of the means over ranks."""
        figures = {"critic_loss": self._descend("critics", batch, lambda given: self._critic_loss(given, generator))}
        if self._aliased:
            figures["noise_critic_loss"] = self._descend(
                "noise_critics", batch, lambda given: self._noise_critic_loss(given, generator)
            )
        drawn = None if batch is None else self._draw(batch.seen, generator)
        if batch is None or drawn is None:
            found = {name: self._descend(name, None, None) for name in ("policy", "temperature")}
            figures |= {"policy_loss": found["policy"], "value": 0.0, "entropy": 0.0}
        else:
            value = self.noise_critics(batch.seen.features, drawn[0]).amin(0)
            temperature, missing = self.log_temperature.exp().detach(), drawn[1].detach() + self.target
            figures["policy_loss"] = self._descend(
                "policy", batch, lambda given: given.mean(temperature * drawn[1] - value)
            )
            self._descend("temperature", batch, lambda given: -given.mean(self.log_temperature * missing))
            figures["value"] = float(batch.mean(value.detach()))
            figures["entropy"] = -float(batch.mean(drawn[1].detach())) / self.policy.size
        _follow(self.critics, self.targets, self.config.tau)
        if self._acting is not self.policy:
            _follow(self.policy, self._acting, self.config.policy_tau)
        return figures

    @property
    def target(self) -> float:
        """Return the entropy of π that the temperature is learned for, in nats."""
        return self.config.target_entropy * self.policy.size

    def _descend(self, name: str, batch: Minibatch | None, loss: Callable[[Minibatch], Tensor] | None) -> float:
        """Take a step of one optimiser, together with the other ranks; return this rank's loss, 0 without decisions."""
        optimiser, value = self._optimisers[name], 0.0
        optimiser.zero_grad()
        if batch is not None and loss is not None:
            found = loss(batch)
            found.backward()
            value = found.item()
        optimiser.step(self.ranks)
        return value

    def _critic_loss(self, batch: Minibatch, generator: torch.Generator) -> Tensor:
        target = self.critic_target(batch, generator)
        return batch.mean((self.critics(batch.seen.features, batch.judged) - target).square())

    def _noise_critic_loss(self, batch: Minibatch, generator: torch.Generator) -> Tensor:
        """Compute the loss of Q_W against the least of Q_A, for w of N(0, I) within the bound or of π, half each."""
        with torch.no_grad():
            noise, _ = self._draw(batch.seen, generator)
            plain = torch.randn(noise.shape, generator=generator).clamp(-self.config.bound, self.config.bound)
            half = torch.rand(len(noise), generator=generator) < 0.5
            noise = torch.where(half[:, None].to(noise.device), plain.to(noise.device), noise)
            target = self.critics(batch.seen.features, self.execute(batch.seen, noise)).amin(0)
        return batch.mean((self.noise_critics(batch.seen.features, noise) - target).square())

    def _draw(self, seen: Seen, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw w float32 [B, d] from π, and return it with its log-density [B]."""
        noise = torch.randn((len(seen.pooled), self.policy.size), generator=generator)
        return self.policy.draw(seen.pooled, noise.to(seen.pooled.device))

    def _make_look(self, replay: Replay, known: Transitions) -> Callable[[Array], Seen]:
        """Return the function that looks at rows int64 [B, 3], and computes once what the frozen network sees there."""
        table = RowTable(np.concatenate([known.where, known.following]), lambda where: self._perceive(replay, where))
        return lambda where: self._see(table.read(where))

    def _perceive(self, replay: Replay, where: Array) -> Trace:
        """Return what is kept of the observations in rows int64 [B, 3]: for sac, which does not denoise, no inputs."""
        actor, observation = self.actor, replay.read_observation(where)
        kept = actor.keep_observation(observation)
        kept = kept if self._aliased else {POOLED: actor.encode_kept(kept).pooled.float()}
        kept[OWN_STATE] = torch.from_numpy(observation.state)
        if self._reads_truth:
            assert observation.privileged is not None, "checked before the run"
            truth = actor.embodiment.normalise_privileged(observation.privileged, actor.privileged_names)
            kept[PRIVILEGED] = truth.to(actor.device)
        return kept

    def _see(self, kept: Trace) -> Seen:
        """Return what is known of observations, from what `_perceive` kept."""
        context = self.actor.encode_kept(kept) if self._aliased else None
        pooled = kept[POOLED] if context is None else context.pooled.float()
        features = [layer_norm(pooled, pooled.shape[1:]), *([kept[PRIVILEGED]] if self._reads_truth else [])]
        return Seen(pooled, torch.cat(features, dim=-1), kept[OWN_STATE], context)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that an exact resume needs; the policy's own are in its file."""
        parts = {name: dict(module.state_dict()) for name, module in self._modules().items()}
        parts |= {f"{name}_optimiser": each.state() for name, each in self._optimisers.items()}
        return join_states(parts | {"temperature": {"log": self.log_temperature.detach().clone()}})

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`."""
        for name, module in self._modules().items():
            module.load_state_dict(split_state(state, name))
        for name, optimiser in self._optimisers.items():
            optimiser.load(split_state(state, f"{name}_optimiser"))
        with torch.no_grad():
            self.log_temperature.copy_(state["temperature/log"])

    def _modules(self) -> Mapping[str, nn.Module]:
        """Return the modules that are no part of the policy, by their names in `state`."""
        own = {"critics": self.critics, "targets": self.targets}
        own |= {"noise_critics": self.noise_critics} if self._aliased else {}
        return own | ({} if self._acting is self.policy else {"policy": self.policy})


@torch.no_grad()
def _follow(learned: nn.Module, average: nn.Module, part: float) -> None:
    """Move the weights of an exponential average by a part of the way to those that are learned."""
    for mine, slow in zip(learned.parameters(), average.parameters(), strict=True):
        slow.lerp_(mine, part)
