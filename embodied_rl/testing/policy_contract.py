"""The contracts of a flow backbone and of an actor, as checks for their authors' tests.

Shapes: n rows, H predicted and Hx executed actions, D model and A simulator action dimensions, F features.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from embodied_rl.interfaces.backbone import Context, FlowBackbone, PolicyInput
from embodied_rl.interfaces.policy import Actor, Decision, NoiseKeys
from embodied_rl.interfaces.sim import Observation, SimulatorSpec

ROWS = 3
CLOSE = 1e-4
"""Relative and absolute tolerance, of actions in parts of their range: sums over a batch may have another order."""


def check_backbone(build: Callable[[], FlowBackbone], *, vocabulary: int = 3) -> None:
    """Check a backbone against `interfaces.backbone`, on random inputs made from its spec.

    Args:
        build: returns a new backbone; called once.
        vocabulary: number of token ids it knows; ids 1 … vocabulary - 1 are used.

    Raises:
        AssertionError: the contract is broken.
    """
    backbone = build()
    spec = backbone.spec
    lazy = [name for name, value in backbone.named_parameters() if isinstance(value, UninitializedParameter)]
    assert not lazy, f"{lazy[0]} is lazy: parameters must have their sizes when the constructor returns"
    inputs = make_random_inputs(backbone, vocabulary)
    generator = torch.Generator().manual_seed(1)
    x, t = torch.randn(ROWS, spec.horizon, spec.action_dim, generator=generator), torch.tensor([1.0, 0.6, 0.2])
    context = backbone.encode(inputs)
    _check_context(backbone, context)
    velocity, features = backbone.velocity(x, t, context)
    _check_tensor("velocity", velocity, (ROWS, spec.horizon, spec.action_dim), torch.float32)
    assert features.shape == (ROWS, spec.horizon, spec.feature_dim), f"features have shape {tuple(features.shape)}"
    _check_rows_are_independent(backbone, inputs, x, t, velocity)
    _check_context_can_be_cut(backbone, context, x, t, velocity)
    _check_actions_have_own_times(backbone, context, x, t, velocity, features)
    _check_perception(backbone, inputs, context)
    _check_modes_agree(backbone, inputs, x, t)
    velocity.square().mean().backward()
    learned = [p for p in backbone.parameters() if p.grad is not None]
    assert learned, "no gradient reaches the parameters from the velocity"


def check_actor(
    build: Callable[[], Actor],
    spec: SimulatorSpec,
    *,
    observation: Observation | None = None,
    rowwise: bool = False,
) -> None:
    """Check an actor against `interfaces.policy`.

    Args:
        build: returns a new actor; called once.
        spec: of the actor's simulator.
        observation: of `ROWS` rows; by default random, with instructions of `spec.words`.
        rowwise: whether a row must be bit-equal in any batch, as a fake's is; otherwise it must be close.

    Raises:
        AssertionError: the contract is broken.
    """
    actor = build()
    check = ActorCheck(actor, spec, make_random_observation(spec) if observation is None else observation, rowwise)
    check.decisions_have_the_promised_shapes()
    check.noise_follows_the_keys()
    check.privileged_state_changes_no_action()
    check.batching_changes_nothing()
    check.evaluation_recomputes_the_decision()
    check.parameters_are_in_one_group_each()


@dataclass
class ActorCheck:
    """The checks of one actor; each can be called alone."""

    actor: Actor
    spec: SimulatorSpec
    observation: Observation
    rowwise: bool = False

    def decisions_have_the_promised_shapes(self) -> None:
        actor, decision = self.actor, self.act()
        rows, executed = len(self.observation), actor.log_prob_shape()[0]
        actions = decision.actions
        assert isinstance(actions, np.ndarray) and actions.dtype == np.float32, "actions must be NumPy float32"
        shape = (rows, executed, self.spec.action_dim)
        assert actions.shape == shape, f"actions must have shape {shape}, got {actions.shape}"
        assert np.isfinite(actions).all(), "actions are not finite"
        low, high = np.array(self.spec.action_low, np.float32), np.array(self.spec.action_high, np.float32)
        assert (actions >= low).all() and (actions <= high).all(), "actions exceed the simulator's limits"
        _check_tensor("log_prob", decision.log_prob, (rows, *actor.log_prob_shape()), torch.float32)
        _check_tensor("value", decision.value, (rows,), torch.float32)
        assert decision.version.dtype == torch.int64, "version must be int64"
        assert (decision.version == actor.version).all(), "version is not the actor's"
        spec, trace = actor.trace_spec(), decision.trace
        assert trace.keys() == spec.keys(), f"trace holds {sorted(trace)}, trace_spec promises {sorted(spec)}"
        for name, (entry, dtype) in spec.items():
            _check_tensor(f"trace '{name}'", trace[name], (rows, *entry), dtype)

    def noise_follows_the_keys(self) -> None:
        """Check that equal keys give equal bits, every part of a key matters, and `explore=False` is not random."""
        first, again = self.act(), self.act()
        assert np.array_equal(first.actions, again.actions), "the same observation and keys give different actions"
        keys = self.keys()
        for other in (
            replace(keys, seed=9),
            replace(keys, episode=keys.episode + 50),
            replace(keys, decision=keys.decision + 1),
        ):
            assert not np.array_equal(first.actions, self.act(keys=other).actions), "noise ignores a part of its key"
        greedy, repeated = self.act(explore=False), self.act(explore=False)
        assert np.array_equal(greedy.actions, repeated.actions), "explore=False is not deterministic"

    def privileged_state_changes_no_action(self) -> None:
        """Check that privileged state has no effect in the rollout, in deployment without it, or in the update."""
        if self.observation.privileged is None:
            return
        decision = self.act()
        other = replace(self.observation, privileged=self.observation.privileged + 1)
        changed = self.act(observation=other)
        assert np.array_equal(decision.actions, changed.actions), "actions change with privileged state"
        assert torch.equal(decision.log_prob, changed.log_prob), "log_prob changes with privileged state"
        deployed = self.act(observation=self.observation.without_privileged(), explore=False)
        greedy = self.act(explore=False)
        assert np.array_equal(deployed.actions, greedy.actions), "deployed without privileged state, actions change"
        trace = {n: x + 1 if "privileged" in n else x for n, x in decision.trace.items()}
        left, right = self.actor.evaluate(decision.trace).log_prob, self.actor.evaluate(trace).log_prob
        assert torch.equal(left, right), "a recomputed log_prob changes with privileged state"

    def batching_changes_nothing(self) -> None:
        """Check that a row alone gives the same result as in a batch."""
        whole = self.act()
        range_ = np.subtract(self.spec.action_high, self.spec.action_low, dtype=np.float32)
        for row in range(len(self.observation)):
            keys = NoiseKeys(3, self.keys().episode[[row]], self.keys().decision[[row]])
            alone = self.act(observation=self.observation.select([row]), keys=keys)
            message = f"row {row} depends on the rest of its batch"
            found, expected = (torch.from_numpy(each / range_) for each in (alone.actions, whole.actions[[row]]))
            self._assert_equal(found, expected, message)
            self._assert_equal(alone.log_prob, whole.log_prob[[row]], message)
            self._assert_equal(alone.value, whole.value[[row]], message)

    def evaluation_recomputes_the_decision(self) -> None:
        """Check that unchanged weights give ratio 1 and the same value, and that actor and critic get gradients."""
        decision = self.act()
        assert not decision.log_prob.requires_grad, "act builds a graph under torch.no_grad"
        again = self.actor.evaluate(decision.trace)
        torch.testing.assert_close(again.log_prob, decision.log_prob, rtol=CLOSE, atol=CLOSE, msg=_prefix("log_prob"))
        torch.testing.assert_close(again.value, decision.value, rtol=CLOSE, atol=CLOSE, msg=_prefix("value"))
        assert again.entropy.shape == decision.log_prob.shape, "entropy must have the shape of log_prob"
        with torch.no_grad():
            value = self.actor.value(self.observation, self.keys())
        torch.testing.assert_close(value, decision.value, rtol=CLOSE, atol=CLOSE, msg=_prefix("Actor.value"))
        again.log_prob.sum().backward()
        assert _has_gradient(self.actor.parameter_groups()["actor"]), "log_prob gives the actor no gradient"
        self.actor.zero_grad()
        critic = self.actor.parameter_groups()["critic"]
        if critic:
            self.actor.evaluate(decision.trace).value.sum().backward()
            assert _has_gradient(critic), "the value gives the critic no gradient"
            self.actor.zero_grad()

    def parameters_are_in_one_group_each(self) -> None:
        """Check that every trainable parameter is in exactly one group."""
        grouped = [id(p) for group in self.actor.parameter_groups().values() for p in group if p.requires_grad]
        assert len(set(grouped)) == len(grouped), "a parameter is in two of parameter_groups"
        learned = {id(p) for p in self.actor.parameters() if p.requires_grad}
        assert set(grouped) == learned, "parameter_groups leaves out a parameter that requires a gradient"

    def keys(self) -> NoiseKeys:
        rows = np.arange(len(self.observation), dtype=np.int64)
        return NoiseKeys(3, 100 + rows, rows)

    @torch.no_grad()
    def act(
        self, observation: Observation | None = None, keys: NoiseKeys | None = None, explore: bool = True
    ) -> Decision:
        return self.actor.act(observation or self.observation, keys or self.keys(), explore)

    def _assert_equal(self, left: Tensor, right: Tensor, message: str) -> None:
        equal = torch.equal(left, right) if self.rowwise else torch.allclose(left, right, rtol=CLOSE, atol=CLOSE)
        assert equal, message


def make_random_inputs(backbone: FlowBackbone, vocabulary: int) -> PolicyInput:
    """Return random inputs of `ROWS` rows that fit a backbone's spec."""
    spec, generator = backbone.spec, torch.Generator().manual_seed(0)
    size = (ROWS, *spec.image_size, 3)
    images = {name: torch.randint(256, size, generator=generator, dtype=torch.uint8) for name in spec.cameras}
    tokens = torch.randint(1, vocabulary, (ROWS, spec.token_length), generator=generator)
    tokens[0, spec.token_length // 2 :] = 0
    return PolicyInput(images, torch.randn(ROWS, spec.state_dim, generator=generator), tokens)


def make_random_observation(spec: SimulatorSpec) -> Observation:
    """Return a random observation of `ROWS` rows that fits a simulator's spec."""
    random = np.random.default_rng(0)
    privileged = random.normal(size=(ROWS, len(spec.privileged_names))).astype(np.float32)
    words = spec.words or ("do",)
    return Observation(
        images={c.name: random.integers(0, 256, (ROWS, c.height, c.width, 3), np.uint8) for c in spec.cameras},
        state=random.normal(size=(ROWS, len(spec.state_names))).astype(np.float32),
        instruction=tuple(words[row % len(words)] for row in range(ROWS)),
        privileged=privileged if spec.privileged_names else None,
    )


def _check_context(backbone: FlowBackbone, context: Context) -> None:
    spec = backbone.spec
    for name, tensor in context.tensors.items():
        assert len(tensor) == ROWS, f"context '{name}' is not batch-first: {tuple(tensor.shape)}"
    _check_tensor("Context.pooled", context.pooled, (ROWS, spec.context_dim), torch.float32)
    assert (context.auxiliary is None) == (not spec.auxiliary_names), "Context.auxiliary and auxiliary_names disagree"
    if context.auxiliary is not None:
        _check_tensor("Context.auxiliary", context.auxiliary, (ROWS, len(spec.auxiliary_names)), torch.float32)


def _check_rows_are_independent(
    backbone: FlowBackbone, inputs: PolicyInput, x: Tensor, t: Tensor, velocity: Tensor
) -> None:
    for row in range(ROWS):
        one = slice(row, row + 1)
        images = {name: image[one] for name, image in inputs.images.items()}
        context = backbone.encode(PolicyInput(images, inputs.state[one], inputs.tokens[one]))
        alone = backbone.velocity(x[one], t[one], context)[0]
        assert torch.allclose(alone, velocity[one], rtol=CLOSE, atol=CLOSE), (
            f"row {row} depends on the rest of its batch"
        )


def _check_context_can_be_cut(backbone: FlowBackbone, context: Context, x: Tensor, t: Tensor, velocity: Tensor) -> None:
    rows = torch.tensor([2, 0])
    chosen = backbone.velocity(x[rows], t[rows], context.select(rows))[0]
    assert torch.allclose(chosen, velocity[rows], rtol=CLOSE, atol=CLOSE), "a selected context gives another velocity"
    joined = Context.cat([context.select(torch.tensor([row])) for row in range(ROWS)])
    again = backbone.velocity(x, t, joined)[0]
    assert torch.allclose(again, velocity, rtol=CLOSE, atol=CLOSE), "contexts put together again give another velocity"


def _check_actions_have_own_times(
    backbone: FlowBackbone, context: Context, x: Tensor, t: Tensor, velocity: Tensor, features: Tensor
) -> None:
    """Check that t [n, H] gives each action its own flow time, and that equal times give what t [n] gives."""
    own = t[:, None].repeat(1, backbone.spec.horizon)
    answer = backbone.velocity(x, own, context)
    for name, one, each in zip(("velocity", "features"), (velocity, features), answer, strict=True):
        assert each.shape == one.shape, f"with t [n, H], {name} have shape {tuple(each.shape)}"
        assert torch.allclose(each, one, rtol=CLOSE, atol=CLOSE), f"equal times t [n, H] give other {name} than t [n]"
    own[:, -1] = 0
    given, whole = backbone.velocity(x, own, context)[0], backbone.velocity(x, torch.zeros_like(t), context)[0]
    reads_time = not torch.allclose(whole, velocity, rtol=CLOSE, atol=CLOSE)  # new weights may not yet
    changed = not torch.allclose(given, velocity, rtol=CLOSE, atol=CLOSE)
    assert changed or not reads_time, "with t [n, H], the velocity ignores the own time of the last action"


def _check_perception(backbone: FlowBackbone, inputs: PolicyInput, context: Context) -> None:
    features = backbone.perceive(inputs)
    if features is None:
        assert not backbone.perception_parameters(), "perception_parameters without perceive"
        return
    for name, tensor in features.items():
        assert len(tensor) == ROWS, f"feature '{name}' is not batch-first: {tuple(tensor.shape)}"
    again = backbone.encode(replace(inputs, images={}, features=features))
    assert torch.allclose(again.pooled, context.pooled, rtol=CLOSE, atol=CLOSE), (
        "encode gives another context for cached features"
    )
    known = {id(parameter) for parameter in backbone.parameters()}
    assert all(id(p) in known for p in backbone.perception_parameters()), "perception_parameters are not the backbone's"


def _check_modes_agree(backbone: FlowBackbone, inputs: PolicyInput, x: Tensor, t: Tensor) -> None:
    """Check that train and eval modes agree; dropout would make the first importance ratio differ from 1."""
    results = []
    for training in (True, False, True):
        backbone.train(training)
        with torch.no_grad():
            results.append(backbone.velocity(x, t, backbone.encode(inputs))[0])
    same = all(torch.equal(results[0], result) for result in results[1:])
    assert same, "the velocity is random, or differs between train() and eval(): no dropout, no batch statistics"


def _check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert tensor.dtype == dtype, f"{name} must be {dtype}, got {tensor.dtype}"
    assert tensor.shape == shape, f"{name} must have shape {shape}, got {tuple(tensor.shape)}"
    assert not dtype.is_floating_point or tensor.isfinite().all(), f"{name} is not finite"


def _prefix(name: str) -> Callable[[str], str]:
    return lambda message: f"recomputed with unchanged weights, {name} differs from the decision's: {message}"


def _has_gradient(parameters: list[torch.nn.Parameter]) -> bool:
    return any(p.grad is not None and p.grad.abs().sum() > 0 for p in parameters)
