"""What a frozen part of a network gives may be kept instead of images: the same decisions, and nothing stale."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.actors.flow import FlowActor
from embodied_rl.assembly import build
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Observation, SimulatorSpec
from embodied_rl.schema import LoraNode, PolicyNode, SamplerNode
from embodied_rl.testing.policy_contract import check_actor

TINY = {
    "width": 32, "layers": 2, "hidden": 40, "heads": 2, "head_dim": 8, "vocabulary": None, "expert_width": 24,
    "expert_hidden": 32, "vision_width": 16, "vision_layers": 1, "vision_hidden": 24, "vision_heads": 2, "patch": 8,
    "resolution": 32, "horizon": 4, "action_dim": 5, "state_dim": 4, "token_length": 16,
}  # fmt: skip
GROUPED = TINY | {"key_value_heads": 1, "pixel_shuffle": 2}
SIZES = {"pi0": TINY, "pi05": TINY, "smolvla": GROUPED}
SAMPLERS = {
    "hybrid": SamplerNode(denoise_steps=3),
    "full": SamplerNode(denoise_steps=3, layers="full"),
    "noise": SamplerNode("flow_noise", denoise_steps=3),
}
KEPT = ("images", "features", "prefix")
each = pytest.mark.parametrize
every_combination = [
    each("family", SIZES),
    each("sampler", SAMPLERS),
    each("keep", KEPT),
]

Make = Callable[..., FlowActor]


@pytest.fixture
def make(simulator_spec: SimulatorSpec) -> Make:
    """Family, sampler, what is kept and further settings → an actor none of whose weights is zero."""

    def made(family: str = "pi0", sampler: str = "hybrid", keep: str = "images", **node: Any) -> FlowActor:
        torch.manual_seed(0)
        told = {"train": "expert", "critic": "expert"} | node
        policy = PolicyNode(family, options=SIZES[family], executed=2, **told)
        actor = build.build_actor(policy, SAMPLERS[sampler], simulator_spec, Needs(critic=True))
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        actor.keep = keep  # pyright: ignore[reportAttributeAccessIssue]
        return actor

    return made


def everywhere(test: Callable[..., None]) -> Callable[..., None]:
    """For each policy, sampler and kept part."""
    for mark in every_combination:
        test = mark(test)
    return test


@pytest.mark.thorough
@everywhere
def test_the_contract_of_an_actor(make: Make, simulator_spec: SimulatorSpec, family: str, sampler: str, keep: str):
    check_actor(lambda: make(family, sampler, keep), simulator_spec)


@pytest.mark.thorough
@each("family", SIZES)
@each("keep", KEPT)
def test_a_decision_in_mixed_precision_is_recomputed_to_the_bit(make: Make, observe, keys, family: str, keep: str):
    actor, exact = (make(family, "full", keep, autocast=wanted) for wanted in (True, False))
    decision = actor.act(observe(6), keys(6), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob, decision.log_prob) and torch.equal(again.value, decision.value)
    assert not torch.equal(exact.act(observe(6), keys(6), explore=True).log_prob, decision.log_prob)


@pytest.mark.thorough
@each(("train", "keep"), [("expert", "prefix"), ("lora", "images")])
def test_frozen_weights_may_be_bfloat16_while_the_others_learn_in_float32(
    make: Make, observe, keys, train: str, keep: str
) -> None:
    actor = make("pi0", "full", keep, train=train, precision="bfloat16")
    learning = [parameter for parameter in actor.backbone.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in learning} == {torch.float32}
    frozen = [parameter for parameter in actor.backbone.prefix_parameters() if not parameter.requires_grad]
    assert {parameter.dtype for parameter in frozen} == {torch.bfloat16}
    decision = actor.act(observe(3), keys(3), explore=True)
    again = actor.evaluate(decision.trace)
    assert torch.equal(again.log_prob, decision.log_prob)
    again.log_prob.sum().backward()
    assert all(parameter.grad is not None for parameter in learning)


@each("family", SIZES)
@each("sampler", SAMPLERS)
def test_keep_changes_only_the_trace(make: Make, observe, keys, family: str, sampler: str) -> None:
    """Actions, log-probabilities and gradients; images are in the trace only where nothing else is."""
    gradients, decisions = [], []
    for keep in KEPT:
        actor = make(family, sampler, keep)
        decisions.append(actor.act(observe(3), keys(3), explore=True))
        actor.evaluate(decisions[-1].trace).log_prob.sum().backward()
        gradients.append({name: p.grad for name, p in actor.named_parameters() if p.grad is not None})
    for keep, decision, found in zip(KEPT, decisions, gradients, strict=True):
        kinds = {name.split("/")[1] for name in decision.trace if name.startswith("input/")}
        assert kinds == {"tokens", "state", {"images": "image"}.get(keep, keep)}
        assert np.array_equal(decision.actions, decisions[0].actions)
        assert torch.equal(decision.log_prob, decisions[0].log_prob)
        assert found.keys() == gradients[0].keys() and len(found) > 10
        for name, value in gradients[0].items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def bytes_of(actor: FlowActor, observation: Observation, keys: NoiseKeys) -> int:
    """Of one row of a trace."""
    trace = actor.act(observation, keys, explore=True).trace
    return sum(value.nbytes for value in trace.values()) // len(observation)


def test_the_largest_saving_that_fits_is_kept(make: Make, observe, keys) -> None:
    """To the byte, for any number of rows."""
    actor = make()
    sizes = {}
    for keep in KEPT:
        actor.keep = keep
        sizes[keep] = bytes_of(actor, observe(2), keys(2))
    assert sizes["prefix"] > sizes["features"] != sizes["images"]
    for rows in (1, 7):
        assert actor.keep_within(rows, rows * sizes["prefix"]) == actor.keep == "prefix"
        assert actor.keep_within(rows, rows * sizes["prefix"] - 1) == actor.keep == "features"
        assert actor.keep_within(rows, rows * sizes["features"]) == actor.keep == "features"
        assert actor.keep_within(rows, rows * sizes["features"] - 1) == actor.keep == "images"
        assert actor.keep_within(rows, 0) == actor.keep == "images"


@each(
    ("node", "expected"),
    [
        ({"train": "expert"}, ["prefix", "features", "images"]),
        ({"train": "lora", "lora": LoraNode(2)}, ["features", "images"]),
        ({"train": "full"}, ["images"]),
        ({"train": "full", "freeze_perception": True}, ["features", "images"]),
    ],
)
def test_outputs_of_trainable_parts_are_never_kept(make: Make, node: dict[str, Any], expected: list[str]) -> None:
    if node["train"] == "lora":
        pytest.importorskip("peft")
    actor = make(**node)
    assert actor.keepable() == expected
    assert actor.keep_within(5, float("inf")) == expected[0]


def test_one_parameter_that_learns_is_enough(make: Make) -> None:
    """Of the language model: its images are frozen still; of the vision tower: nothing is."""
    actor = make()
    next(actor.backbone.language.parameters()).requires_grad_(True)
    assert actor.keepable() == ["features", "images"]
    next(actor.backbone.vision.parameters()).requires_grad_(True)
    assert actor.keepable() == ["images"]


def test_a_policy_without_a_prefix_keeps_images_or_features(make_actor) -> None:
    assert make_actor(freeze_perception=False).keepable() == ["images"]
    assert make_actor(freeze_perception=True).keepable() == ["features", "images"]
