"""Which parameters learn: all, the action expert's, or adapters; what is frozen stays as it is to the bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning import trainable
from embodied_rl.assembly import build, networks
from embodied_rl.checkpoints.policy_file import load_network, save_backbone
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.config.freeze import freeze_config, thaw_config
from embodied_rl.interfaces.backbone import FlowBackbone, PolicyInput
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Task
from embodied_rl.schema import LoraNode, PolicyNode
from embodied_rl_policies.pi.pi0 import Pi0
from embodied_rl_policies.pi.pi05 import Pi05
from tests.support.refusals import refuses

TINY = {
    "width": 32, "layers": 3, "hidden": 40, "heads": 2, "head_dim": 8, "vocabulary": None, "expert_width": 24,
    "expert_hidden": 32, "vision_width": 16, "vision_layers": 1, "vision_hidden": 24, "vision_heads": 2, "patch": 8,
    "resolution": 32, "horizon": 4, "action_dim": 5, "state_dim": 4, "token_length": 16,
}  # fmt: skip
FAMILIES = {"pi0": Pi0, "pi05": Pi05}
SPEC = SimulatorSpec(
    cameras=(Camera("front", 32, 32),),
    state_names=("x", "y"),
    action_names=("dx", "dy", "gripper"),
    action_low=(-1.0,) * 3,
    action_high=(1.0,) * 3,
    control_hz=10,
    horizon=20,
    tasks=(Task("reach", "reach"),),
    words=("reach", "the", "cube"),
)
FROZEN = ("vision.", "projector.", "language.")
families = pytest.mark.parametrize("family", FAMILIES)


def new(family: str = "pi0") -> tuple[FlowBackbone, Embodiment]:
    """A network with random weights, no adaptive norm at its zero."""
    torch.manual_seed(0)
    network, robot = build.build_backbone(PolicyNode(family, options=TINY), SPEC)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return network, robot


def velocity(network: FlowBackbone) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    images = {"front": torch.randint(256, (3, 32, 32, 3), generator=generator, dtype=torch.uint8)}
    tokens = torch.randint(1, 5, (3, 16), generator=generator)
    inputs = PolicyInput(images, torch.randn(3, 4, generator=generator), tokens)
    x = torch.randn(3, 4, 5, generator=generator)
    return network.velocity(x, torch.tensor([1.0, 0.5, 0.1]), network.encode(inputs))[0]


def learn(network: FlowBackbone, steps: int = 3) -> None:
    """Some steps of an optimiser that is given every parameter that learns."""
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(learning, lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        velocity(network).square().mean().backward()
        optimiser.step()


def copied(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.named_parameters()}


def moved(network: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, value in network.named_parameters() if not torch.equal(value, before[name])}


@pytest.mark.thorough
@families
def test_adapters_are_added_to_the_named_modules_only(family: str) -> None:
    """All linear maps of language model and expert that something reads: counted by hand for three layers."""
    network, _ = new(family)
    trainable.choose_trainable(network, "lora", LoraNode(2))
    adapted = {name for name, module in network.named_modules() if hasattr(module, "lora_A")}
    assert adapted == set(network.adapted_modules())
    assert len(adapted) == 2 * 7 + 2 + 3 * 7  # two whole layers of language, keys and values of the last, the expert
    shapes = {tuple(p.shape) for name, p in network.named_parameters() if ".lora_A." in name}
    assert {shape[0] for shape in shapes} == {2}


@pytest.mark.thorough
@families
def test_new_adapters_change_nothing(family: str) -> None:
    network, _ = new(family)
    before = velocity(network)
    trainable.choose_trainable(network, "lora", LoraNode(4, 16.0))
    assert torch.equal(velocity(network), before)


@families
def test_adapters_and_heads_learn_and_the_rest_stays(family: str) -> None:
    network, _ = new(family)
    heads = {id(parameter) for parameter in network.head_parameters()}
    trainable.choose_trainable(network, "lora", LoraNode(2))
    named = dict(network.named_parameters())
    expected = {name for name, p in named.items() if ".lora_" in name or id(p) in heads}
    assert {name for name, p in named.items() if p.requires_grad} == expected
    assert {name.split(".")[0] for name in expected} > {"action_in_proj", "action_out_proj", "expert", "language"}
    before = copied(network)
    learn(network)
    unread = {name for name in expected if name.startswith("state_proj") and family == "pi05"}
    assert moved(network, before) == expected - unread


@families
def test_an_adapter_adds_alpha_over_rank_times_b_times_a(family: str) -> None:
    network, _ = new(family)
    name = "expert.layers.0.mlp.up_proj"
    old = network.get_parameter(f"{name}.weight").detach().clone()
    trainable.choose_trainable(network, "lora", LoraNode(2, 6.0))
    learn(network)
    module: Any = network.get_submodule(name)
    expected = old + 6.0 / 2 * module.lora_B["default"].weight @ module.lora_A["default"].weight
    trainable.merge_adapters(network)
    torch.testing.assert_close(network.get_parameter(f"{name}.weight"), expected)


@pytest.mark.thorough
@families
@pytest.mark.parametrize("node", [LoraNode(3, 12.0), LoraNode(2)])
def test_adapters_survive_a_file(tmp_path: Path, family: str, node: LoraNode) -> None:
    """They stay adapters where they go on learning, and become weights elsewhere."""
    network, robot = new(family)
    trainable.choose_trainable(network, "lora", node)
    learn(network)
    file = tmp_path / "policy.safetensors"
    save_backbone(file, network, robot, family, thaw_config(network.config))
    stored = read_metadata(file).adapters
    assert stored == LoraNode(node.rank, node.rank if node.alpha is None else node.alpha)
    kept, _ = load_network(file, maker(family), merged=False)
    assert trainable.read_adapter_settings(kept) == stored
    assert torch.equal(velocity(kept), velocity(network))
    merged, _ = load_network(file, maker(family), merged=True)
    assert trainable.read_adapter_settings(merged) is None
    torch.testing.assert_close(velocity(merged), velocity(network), rtol=0, atol=1e-6)


@pytest.mark.thorough
@families
def test_stored_adapters_go_on_learning(tmp_path: Path, family: str) -> None:
    network, robot = new(family)
    trainable.choose_trainable(network, "lora", LoraNode(3))
    learn(network)
    file = tmp_path / "policy.safetensors"
    save_backbone(file, network, robot, family, thaw_config(network.config))
    node = PolicyNode(family, checkpoint=str(file), train="lora", lora=LoraNode(3))
    again, _ = build.build_backbone(node, SPEC)
    trainable.choose_trainable(again, node.train, node.lora)
    assert torch.equal(velocity(again), velocity(network))
    before = copied(again)
    learn(again)
    changed = moved(again, before)
    assert changed and not any(".base_layer." in name or name.startswith("vision") for name in changed)


def maker(family: str) -> Callable[[Any], FlowBackbone]:
    """What `load_network` is given."""
    cls = FAMILIES[family]

    def make(metadata: Any) -> FlowBackbone:
        options = freeze_config(cls.Config, metadata.config, "policy")
        return networks.make_backbone(cls, options, metadata.embodiment, ())

    return make


@families
def test_the_expert_learns_alone(family: str) -> None:
    network, _ = new(family)
    trainable.choose_trainable(network, "expert", LoraNode())
    before = copied(network)
    learn(network)
    changed = moved(network, before)
    assert changed and not any(name.startswith(FROZEN) for name in changed)
    read = {name for name in before if not name.startswith(FROZEN)}
    assert changed == read


@families
def test_everything_learns(family: str) -> None:
    """Every parameter that there is: none is left over that nothing reads."""
    network, _ = new(family)
    trainable.choose_trainable(network, "full", LoraNode())
    before = copied(network)
    learn(network)
    still = set(before) - moved(network, before)
    assert all("self_attn.k_proj.bias" in name for name in still)  # a softmax does not see what all keys share


@pytest.mark.parametrize(("train", "code"), [("expert", "train-expert-unsupported"), ("lora", "lora-unsupported")])
def test_a_policy_without_such_parts_is_refused(train: str, code: str) -> None:
    network, _ = build.build_backbone(PolicyNode("pocket"), SPEC)
    with refuses(code, f"policy.train={train}"):
        trainable.choose_trainable(network, train, LoraNode())


@pytest.mark.thorough
def test_another_rank_than_the_files_is_refused(tmp_path: Path) -> None:
    network, robot = new()
    trainable.choose_trainable(network, "lora", LoraNode(3))
    file = tmp_path / "policy.safetensors"
    save_backbone(file, network, robot, "pi0", thaw_config(network.config))
    node = PolicyNode("pi0", checkpoint=str(file), train="lora", lora=LoraNode(8))
    again, _ = build.build_backbone(node, SPEC)
    with refuses("lora-settings-mismatch", "policy.lora.rank=3 policy.lora.alpha=3"):
        trainable.choose_trainable(again, node.train, node.lora)


def test_without_peft_the_extra_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "peft", None)
    with refuses("package-missing", "embodied-rl[lora]"):
        trainable.choose_trainable(new()[0], "lora", LoraNode())
