"""The contracts of backbone and actor: sound ones pass, broken ones are caught with a fitting message."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, FlowBackbone, PolicyInput, PolicySpec
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.testing.contract import check_actor, check_backbone
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor

SPEC = FakeSimulator(1).spec


class LinearBackbone(FlowBackbone):
    """The smallest thing that is a flow policy."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.spec = PolicySpec(2, 3, 4, ("top",), (8, 8), 5, feature_dim=6, context_dim=7, auxiliary_names=("goal",))
        self.eye, self.words, self.body = nn.Linear(3, 7), nn.Embedding(3, 7, padding_idx=0), nn.Linear(4, 7)
        self.locate, self.mix, self.out = nn.Linear(7, 1), nn.Linear(7 + 3 + 1, 6), nn.Linear(6, 3)

    def perceive(self, inputs: PolicyInput) -> dict[str, Tensor]:
        return {"colour": self.eye(inputs.images["top"].float().mean((1, 2)) / 255)}

    def perception_parameters(self) -> list[nn.Parameter]:
        return list(self.eye.parameters())

    def encode(self, inputs: PolicyInput) -> Context:
        features = self.perceive(inputs) if inputs.features is None else inputs.features
        pooled = torch.tanh(features["colour"] + self.words(inputs.tokens).sum(1) + self.body(inputs.state))
        return Context({"key": pooled[:, None]}, pooled, self.locate(pooled))

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        key = context.tensors["key"].expand(-1, x.shape[1], -1)
        times = t.reshape(len(t), -1).expand(-1, x.shape[1])[..., None]
        features = torch.tanh(self.mix(torch.cat([key, x, times], dim=-1)))
        return self.out(features), features


class WithDropout(LinearBackbone):
    def velocity(self, x, t, context):
        velocity, features = super().velocity(x, t, context)
        return nn.functional.dropout(velocity, 0.5, self.training), features


class Lazy(LinearBackbone):
    def __init__(self):
        super().__init__()
        self.mix = nn.LazyLinear(6)


class Peeking(LinearBackbone):
    """Normalises over the batch."""

    def encode(self, inputs):
        context = super().encode(inputs)
        pooled = context.pooled - context.pooled.mean(0)
        return Context({"key": pooled[:, None]}, pooled, context.auxiliary)


class IgnoringFeatures(LinearBackbone):
    """Perceives again, with zeros, instead of using what was cached."""

    def encode(self, inputs):
        if inputs.features is not None:
            inputs = replace(inputs, features={"colour": torch.zeros_like(inputs.features["colour"])})
        return super().encode(inputs)


class Detached(LinearBackbone):
    def velocity(self, x, t, context):
        velocity, features = super().velocity(x, t, context)
        return velocity.detach().requires_grad_(), features


class OneTime(LinearBackbone):
    """Gives all actions the first one's flow time."""

    def velocity(self, x, t, context):
        return super().velocity(x, t if t.dim() == 1 else t[:, 0], context)


class OtherTimes(LinearBackbone):
    """Gives the actions other flow times than a time of the whole chunk would."""

    def velocity(self, x, t, context):
        return super().velocity(x, t if t.dim() == 1 else 0.9 * t, context)


class NoAuxiliary(LinearBackbone):
    def encode(self, inputs):
        return replace(super().encode(inputs), auxiliary=None)


class WrongWidth(LinearBackbone):
    def velocity(self, x, t, context):
        velocity, features = super().velocity(x, t, context)
        return velocity, features[..., :5]


def test_a_sound_backbone_passes() -> None:
    check_backbone(LinearBackbone)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (WithDropout, "no dropout|depends on the rest"),
        (Lazy, "mix.weight is lazy"),
        (Peeking, "depends on the rest of its batch"),
        (IgnoringFeatures, "another context for cached features"),
        (Detached, "no gradient reaches the parameters"),
        (OneTime, "ignores the own time of the last action"),
        (OtherTimes, "equal times t \\[n, H\\] give other velocity"),
        (NoAuxiliary, "auxiliary_names disagree"),
        (WrongWidth, "features have shape"),
    ],
)
def test_broken_backbones_are_caught(kind: type[LinearBackbone], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_backbone(kind)


def test_a_sound_actor_passes() -> None:
    check_actor(lambda: RowwiseFakeActor(SPEC), SPEC, rowwise=True)


class Cheating(RowwiseFakeActor):
    """Acts on privileged state."""

    def act(self, observation, keys, explore):
        decision = super().act(observation, keys, explore)
        if observation.privileged is not None:
            decision.actions += 0.01 * observation.privileged[:, :1, None]
            np.clip(decision.actions, -1, 1, out=decision.actions)
        return decision


class CheatingInTheUpdate(RowwiseFakeActor):
    def evaluate(self, trace):
        evaluation = super().evaluate(trace)
        return replace(
            evaluation, log_prob=evaluation.log_prob + 1e-6 * trace["input/privileged"].sum(1)[:, None, None]
        )


class Unkeyed(RowwiseFakeActor):
    """Draws its noise from a generator of its own."""

    def _noise(self, keys, shape):
        return torch.randn(len(keys), *shape)


class HalfKeyed(RowwiseFakeActor):
    """The same noise at every decision of an episode."""

    def _noise(self, keys, shape):
        return super()._noise(NoiseKeys(keys.seed, keys.episode, np.zeros_like(keys.decision)), shape)


class Unclipped(RowwiseFakeActor):
    def act(self, observation, keys, explore):
        decision = super().act(observation, keys, explore)
        return replace(decision, actions=decision.actions * 2)


class OtherLogProb(RowwiseFakeActor):
    def evaluate(self, trace):
        evaluation = super().evaluate(trace)
        return replace(evaluation, log_prob=evaluation.log_prob * 1.01)


class OtherValue(RowwiseFakeActor):
    def value(self, observation, keys):
        return super().value(observation, keys) + 0.1


class Batched(RowwiseFakeActor):
    """Subtracts the batch's mean action."""

    def _inputs_of(self, observation):
        trace = super()._inputs_of(observation)
        trace["input/features"] = trace["input/features"] - trace["input/features"].mean(0)
        return trace


class WrongTrace(RowwiseFakeActor):
    def trace_spec(self):
        return {**super().trace_spec(), "more": ((2,), torch.float32)}


class Forgetful(RowwiseFakeActor):
    def parameter_groups(self):
        return {"actor": [self.weight], "critic": [self.critic_weight]}


class Deaf(RowwiseFakeActor):
    def evaluate(self, trace):
        evaluation = super().evaluate(trace)
        return replace(evaluation, value=evaluation.value.detach() + 0 * self.weight.sum())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Cheating, "actions change with privileged state"),
        (CheatingInTheUpdate, "recomputed log_prob changes with privileged state"),
        (Unkeyed, "the same observation and keys give different actions"),
        (HalfKeyed, "noise ignores a part of its key"),
        (Unclipped, "exceed the simulator's limits"),
        (OtherLogProb, "log_prob differs from the decision's"),
        (OtherValue, r"Actor\.value differs from the decision's"),
        (Batched, "depends on the rest of its batch"),
        (WrongTrace, "trace_spec promises"),
        (Forgetful, "leaves out a parameter"),
        (Deaf, "gives the critic no gradient"),
    ],
)
def test_broken_actors_are_caught(kind: type[RowwiseFakeActor], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_actor(lambda: kind(SPEC), SPEC, rowwise=True)
