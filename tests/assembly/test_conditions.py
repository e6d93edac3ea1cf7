"""Words that an algorithm adds to instructions: new rows of a network, and policies that cannot have them."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.tokenizer import make_word_tokenizer
from embodied_rl.assembly import build
from embodied_rl.assembly.networks import fit_conditions, make_backbone
from embodied_rl.assembly.policy_factory import load_deployed
from embodied_rl.checkpoints.policy_file import load_actor, save_actor, save_backbone
from embodied_rl.config.freeze import thaw_config
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Observation
from embodied_rl.schema import PolicyNode, SamplerNode
from embodied_rl_policies.pocket import Pocket
from tests.support.pocket_actors import SMALL, embodiment, observe, simulator_spec
from tests.support.refusals import refuses

__all__ = ["embodiment", "observe", "simulator_spec"]

CONDITIONS = ("advantage: positive", "advantage: negative")
NEW = ("advantage:", "positive", "negative")


def make_network(embodiment: Embodiment) -> Pocket:
    torch.manual_seed(0)
    network = make_backbone(Pocket, SMALL, embodiment, ())
    assert isinstance(network, Pocket)
    return network


def compute(network: FlowBackbone, body: Embodiment, seen: Observation) -> torch.Tensor:
    """The velocity of a few rows, at one time."""
    generator = torch.Generator().manual_seed(2)
    x, t = torch.randn(len(seen), 4, 3, generator=generator), torch.full((len(seen),), 0.6)
    with torch.no_grad():
        return network.velocity(x, t, network.encode(body.inputs(seen, network)))[0]


def test_new_words_change_no_prompt_without_them(embodiment: Embodiment, observe: Any) -> None:
    """To the bit. The ids of known words stay; prompts with the words are told apart, and learn."""
    network, seen = make_network(embodiment), observe(4)
    before = compute(network, embodiment, seen)
    body = fit_conditions(network, embodiment, CONDITIONS, 4)
    assert body == replace(embodiment, vocabulary=(*embodiment.vocabulary, *NEW))
    assert torch.equal(compute(network, body, seen), before)
    towards, away = (compute(network, replace(body, condition=text), seen) for text in CONDITIONS)
    assert min((towards - away).abs().max(), (towards - before).abs().max()) > 1e-4
    context = network.encode(replace(body, condition=CONDITIONS[0]).inputs(seen, network))
    network.velocity(torch.randn(4, 4, 3), torch.full((4,), 0.5), context)[0].square().mean().backward()
    gradient = network.words.weight.grad
    assert gradient is not None and (gradient.abs().sum(dim=1) > 0).tolist()[-3:] == [True, True, False]


@pytest.mark.parametrize(("longest", "length"), [(4, 6), (5, 7), (0, 8)])
def test_a_prompt_has_room_for_the_longest_instruction_and_condition(
    embodiment: Embodiment, observe: Any, longest: int, length: int
) -> None:
    """And for any that fitted before, where nobody knows the longest. More positions change rounding at most."""
    network, seen = make_network(embodiment), observe(4)
    before, known = compute(network, embodiment, seen), network.word_positions.detach().clone()
    body = fit_conditions(network, embodiment, CONDITIONS, longest)
    assert body.token_length == network.spec.token_length == len(network.word_positions) == length
    assert torch.equal(network.word_positions[:6], known)
    assert torch.allclose(compute(network, body, seen), before, rtol=0, atol=1e-6)


def test_new_words_are_like_those_known(embodiment: Embodiment) -> None:
    """In each entry; a vocabulary without any gets zeros."""
    network = make_network(embodiment)
    with torch.no_grad():
        network.words.weight[1:] = torch.tensor([3.0, -5.0]).repeat(16) + 0.1 * network.words.weight[1:]
    fit_conditions(network, embodiment, [" ".join(f"{text}{number}" for number in range(300)) for text in "ab"], 4)
    known, new = network.words.weight[1:7], network.words.weight[7:]
    assert torch.allclose(new.mean(dim=0), known.mean(dim=0), atol=0.05)
    assert torch.allclose(new.std(dim=0), known.std(dim=0, correction=0), rtol=0.2)
    bare = replace(embodiment, vocabulary=("",))
    network = make_network(bare)
    fit_conditions(network, bare, CONDITIONS, 0)
    assert network.words.weight.shape == (4, 32) and not network.words.weight.any()


def test_a_policy_that_knows_the_words_stays_as_it_is(embodiment: Embodiment) -> None:
    for longest in (0, 4, 5):
        network = make_network(embodiment)
        body = fit_conditions(network, embodiment, CONDITIONS, longest)
        before = deepcopy(network.state_dict())
        assert fit_conditions(network, body, CONDITIONS, longest) == body
        assert fit_conditions(network, body, CONDITIONS, longest, frozen=True) == body
        assert all(torch.equal(value, network.state_dict()[name]) for name, value in before.items())


def test_built_outlined_and_described_networks_have_the_same_shapes(simulator_spec: Any) -> None:
    """With the words, also where another process builds the actor, or a file is read."""
    node, spec = PolicyNode("pocket", options=thaw_config(SMALL)), replace(simulator_spec, instruction_length=7)
    parts: Any = (node, SamplerNode(), spec, Needs(critic=True, conditions=CONDITIONS))
    actor, outline = build.build_actor(*parts), build.outline_actor(*parts)
    other = build.Blueprint.of_actor(actor, node, SamplerNode(), spec).build()
    shapes = [{name: value.shape for name, value in each.state_dict().items()} for each in (actor, outline, other)]
    assert shapes[0] == shapes[1] == shapes[2]
    assert actor.embodiment == outline.embodiment == other.embodiment
    assert actor.embodiment.token_length == 9 and actor.embodiment.vocabulary[-3:] == NEW


def test_a_file_holds_condition_and_guidance(
    embodiment: Embodiment, simulator_spec: Any, observe: Any, tmp_path: Path
) -> None:
    """Whoever loads it acts the same, and may learn from there."""
    node = PolicyNode("pocket", options=thaw_config(SMALL))
    actor: Any = build.build_actor(node, SamplerNode(), simulator_spec, Needs(conditions=CONDITIONS))
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    actor.embodiment = replace(actor.embodiment, condition=CONDITIONS[0], guidance=2.0)
    path, keys = tmp_path / "policy.safetensors", NoiseKeys.none(2)
    save_actor(path, actor, "pocket", thaw_config(SMALL), extra={"denoise_steps": actor.sampler.denoise_steps})
    expected = actor.infer(observe(2), keys)
    loaded = load_deployed(str(path))
    assert loaded.embodiment == actor.embodiment
    assert (loaded.infer(observe(2), keys) == expected).all()
    again: Any = build.build_actor(
        replace(node, checkpoint=str(path)), SamplerNode(), simulator_spec, Needs(conditions=CONDITIONS)
    )
    assert again.embodiment == actor.embodiment and (again.infer(observe(2), keys) == expected).all()
    again.explore_with({"guidance": 0.0})
    load_actor(path, again)
    assert again.embodiment.guidance == 2 and (again.infer(observe(2), keys) == expected).all()
    again.embodiment = replace(again.embodiment, condition="", guidance=1.0)
    with refuses("checkpoint-of-another-embodiment", "condition"):
        load_actor(path, again)


def test_policies_that_cannot_learn_the_words_are_refused(embodiment: Embodiment, monkeypatch: Any) -> None:
    network = make_network(embodiment)
    with refuses("words-frozen", "policy.freeze_perception", "positive"):
        fit_conditions(network, embodiment, CONDITIONS, 4, frozen=True)
    with refuses("condition-unknown", *CONDITIONS):
        fit_conditions(network, replace(embodiment, tokenizer=make_word_tokenizer(["reach"])), CONDITIONS, 4)
    knows = replace(embodiment, tokenizer=make_word_tokenizer(["advantage", "positive", "negative"]))
    assert fit_conditions(network, knows, CONDITIONS, 4) == knows
    monkeypatch.setattr(Pocket, "WORD_ROWS", None)
    with refuses("words-cannot-grow", "positive"):
        fit_conditions(network, embodiment, CONDITIONS, 4)


@pytest.mark.parametrize("guidance", [0.0, 2.0])
def test_other_algorithms_do_not_train_a_guided_policy(
    embodiment: Embodiment, simulator_spec: Any, tmp_path: Path, guidance: float
) -> None:
    """A condition without guidance they keep."""
    network = make_network(embodiment)
    body = replace(fit_conditions(network, embodiment, CONDITIONS, 4), condition=CONDITIONS[0])
    node, path = PolicyNode("pocket", checkpoint=str(tmp_path / "policy.safetensors")), tmp_path / "policy.safetensors"
    for weight in (guidance, 1.0):
        save_backbone(path, network, replace(body, guidance=weight), "pocket", thaw_config(SMALL))
        for make in (build.build_actor, build.outline_actor):
            if weight == 1:
                assert make(node, SamplerNode(), simulator_spec, Needs(critic=True)).embodiment == body
            else:
                with refuses("guidance-not-trained", f"guidance={weight:g}", CONDITIONS[0]):
                    make(node, SamplerNode(), simulator_spec, Needs(critic=True))
