"""Instructions with a condition, and guidance towards it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.actors.embodiment import add_conditions
from embodied_rl.actors.flow import FlowActor
from embodied_rl.assembly.networks import fit_conditions
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Observation
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.sampler import ode_sample
from embodied_rl.mathematics.flow.transition import Committed
from tests.support.refusals import refuses

GOOD, BAD = "advantage: positive", "advantage: negative"


@pytest.fixture
def conditioned(make_actor: Callable[..., FlowActor]) -> Callable[..., FlowActor]:
    """Condition, guidance and options → an actor that reads the condition."""

    def make(condition: str, guidance: float = 1.0, **options: Any) -> FlowActor:
        actor = make_actor(**options)
        body = fit_conditions(actor.backbone, actor.embodiment, (GOOD, BAD), 4)
        actor.embodiment = replace(body, condition=condition, guidance=guidance)
        return actor.eval()

    return make


def by_hand(actor: FlowActor, seen: Observation, keys: NoiseKeys, weight: float) -> np.ndarray:
    """Actions of the velocity v_null + w (v_condition - v_null), from prompts that are written out."""
    body, network = replace(actor.embodiment, condition="", guidance=1.0), actor.backbone

    def encode(instructions: Sequence[str]) -> Any:
        return network.encode(body.inputs(replace(seen, instruction=tuple(instructions)), network))

    plain = encode(seen.instruction)
    towards = encode([f"{text} {GOOD}" for text in seen.instruction])
    x, steps = draw_normal(keys, NoiseStream.INITIAL, (4, 4)), actor.sampler.denoise_steps
    with torch.no_grad():
        for step in range(steps):
            time = torch.full((len(seen),), 1 - step / steps)
            null, given = (network.velocity(x, time, context)[0] for context in (plain, towards))
            x = x - ((1 - weight) * null + weight * given) / steps
    return body.all_actions(x, seen.state)


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0, 2.0])
def test_guidance_combines_the_velocities_with_and_without_the_condition(
    conditioned: Any, observe: Any, keys: Any, weight: float
) -> None:
    actor, seen = conditioned(GOOD, weight), observe(3)
    acted = actor.infer(seen, keys(3), whole=True)
    assert acted == pytest.approx(by_hand(actor, seen, keys(3), weight), abs=1e-5)
    assert np.abs(acted - by_hand(actor, seen, keys(3), weight + 0.5)).max() > 1e-3
    assert np.array_equal(actor.act(seen, keys(3), explore=False).actions, acted[:, :2])


def test_without_guidance_it_is_the_plain_policy_to_the_bit(conditioned: Any, observe: Any, keys: Any) -> None:
    """At w = 1 under the condition, and at w = 0 without it, whatever it is."""
    seen, plain = observe(3), conditioned("")
    said = replace(seen, instruction=tuple(f"{text} {GOOD}" for text in seen.instruction))
    for actor, same in ((conditioned(GOOD), said), (conditioned(GOOD, 0.0), seen), (conditioned(BAD, 0.0), seen)):
        assert np.array_equal(actor.infer(seen, keys(3)), plain.infer(same, keys(3)))
        assert np.array_equal(actor.act(seen, keys(3), False).actions, plain.act(same, keys(3), False).actions)


@pytest.mark.parametrize(("weight", "encodings"), [(0.0, 1), (1.0, 1), (2.0, 2)])
def test_no_more_is_encoded_than_the_velocity_reads(
    conditioned: Any, observe: Any, keys: Any, weight: float, encodings: int
) -> None:
    actor = conditioned(GOOD, weight)
    count, encode = list[int](), actor.backbone.encode
    actor.backbone.encode = lambda inputs: (count.append(len(inputs)), encode(inputs))[1]
    actor.infer(observe(3), keys(3))
    assert len(count) == encodings


def test_a_guided_policy_continues_committed_actions(conditioned: Any, observe: Any, keys: Any) -> None:
    actor, seen = conditioned(GOOD, 2.0), observe(2)
    actor.backbone.prefix_trained_to = 2
    prefix = np.full((2, 2, 3), 0.05, np.float32)
    acted = actor.infer(seen, keys(2), prefix, whole=True)
    start = draw_normal(keys(2), NoiseStream.INITIAL, (4, 4))
    committed = torch.nn.functional.pad(actor.embodiment.model_actions(prefix, seen.state, 4), (0, 0, 0, 2))
    velocity = actor._deployed_velocity(seen)
    with torch.no_grad():
        x = ode_sample(velocity, start, actor.sampler.denoise_steps, Committed(committed, torch.tensor([2, 2])))
    assert np.array_equal(acted[:, :2], prefix)
    assert np.array_equal(acted[:, 2:], actor.embodiment.all_actions(x, seen.state)[:, 2:])


@pytest.mark.parametrize("critic", ["prefix", "expert"])
def test_values_are_those_under_the_condition(conditioned: Any, observe: Any, keys: Any, critic: str) -> None:
    """Whatever the guidance."""
    seen = observe(3)
    said = replace(seen, instruction=tuple(f"{text} {GOOD}" for text in seen.instruction))
    expected = conditioned("", critic=critic).value(said, keys(3))
    for weight in (0.0, 1.0, 2.0):
        actor = conditioned(GOOD, weight, critic=critic)
        assert torch.equal(actor.value(seen, keys(3)), expected)
        assert torch.equal(actor.act(seen, keys(3), explore=False).value, expected)


def test_guidance_is_neither_explored_nor_scored(conditioned: Any, observe: Any, keys: Any) -> None:
    """A condition without guidance is."""
    actor = conditioned(GOOD, 2.0)
    with refuses("guidance-not-scored", "guidance=2"):
        actor.act(observe(2), keys(2), explore=True)
    with refuses("guidance-not-scored", "guidance=2"):
        actor.evaluate(actor.act(observe(2), keys(2), explore=False).trace)
    actor.explore_with({"guidance": 1.0})
    decision = actor.act(observe(2), keys(2), explore=True)
    assert torch.equal(actor.evaluate(decision.trace).log_prob, decision.log_prob)


def test_guidance_goes_to_other_processes_with_the_weights(conditioned: Any, observe: Any, keys: Any) -> None:
    """As an exploration setting, of a policy with a condition alone."""
    actor, other = conditioned(GOOD, 2.0), conditioned(GOOD, 0.0)
    assert actor.exploration()["guidance"] == 2 and "guidance" not in conditioned("").exploration()
    other.explore_with(actor.exploration())
    assert np.array_equal(other.infer(observe(2), keys(2)), actor.infer(observe(2), keys(2)))
    assert other.exploration() == actor.exploration()


def test_each_row_may_have_its_own_condition(conditioned: Any, observe: Any) -> None:
    """Also where the instruction is withheld."""
    actor, seen = conditioned(GOOD), observe(3)
    body, words = actor.embodiment, ["reach the red cube", "push the blue cube", "reach the red cube"]
    found = actor.observation_inputs(seen, [BAD, "", GOOD]).tokens
    assert torch.equal(found, body.tokens([f"{words[0]} {BAD}", words[1], f"{words[2]} {GOOD}"]))
    actor.embodiment = replace(body, blind="instruction")
    assert torch.equal(actor.observation_inputs(seen).tokens, body.tokens([GOOD] * 3))
    assert add_conditions(words, "") is words
