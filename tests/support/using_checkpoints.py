"""From a folder to a network, to a policy file, and back to a folder: what the tests do with checkpoints."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.assembly import build
from embodied_rl.checkpoints.policy_file import save_backbone
from embodied_rl.commands import export
from embodied_rl.config.freeze import thaw_config
from embodied_rl.interfaces.backbone import FlowBackbone, PolicyInput
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.schema import ExportConfig, PolicyNode
from tests.support import pi_sizes as sizes
from tests.support.building_checkpoints import CAMERAS, OPTIONS, simulator

OPENPI = {"horizon": sizes.CHUNK}
"""What no folder of openpi says."""
SEEN = {view: camera for view, camera in CAMERAS.items() if camera}
Attached = tuple[FlowBackbone, Embodiment]
SMOLVLA_SIZES = {
    "width": 32, "layers": 2, "hidden": 40, "heads": 2, "key_value_heads": 1, "head_dim": 8, "vocabulary": 60,
    "expert_width": 24, "expert_hidden": 32, "vision_width": 16, "vision_layers": 1, "vision_hidden": 24,
    "vision_heads": 2, "patch": 8, "resolution": 32, "pixel_shuffle": 2, "horizon": 4, "action_dim": 7, "state_dim": 8,
    "token_length": 40,
}  # fmt: skip
SMOLVLA_TOLD = {"head_dim": 8, "vision_heads": 2}
"""What tensors do not tell of a vision tower and a language model that were never published."""
SMOLVLA_CARRIED = "model.vlm_with_expert.vlm.lm_head.weight"


def attach(
    folder: Path, family: str, spec: SimulatorSpec | None = None, options: dict[str, Any] | None = None, **node: Any
) -> Attached:
    """The network of a folder, for the simulator of `building`; openpi says neither horizon nor tokenizer by itself."""
    told: dict[str, Any] = {"cameras": CAMERAS} | node
    chosen = PolicyNode(family, checkpoint=str(folder), options=OPTIONS | (options or {}), **told)
    return build.build_backbone(chosen, spec or simulator())


def save(file: Path, policy: str, network: FlowBackbone, robot: Embodiment) -> Path:
    """A policy file of ours."""
    save_backbone(file, network, robot, policy, thaw_config(network.config), extra={"denoise_steps": 4})
    return file


def exported(file: Path, form: str, out: Path, **settings: Any) -> Path:
    """A policy file as a folder of another project."""
    told: dict[str, Any] = {"checkpoint": str(file), "format": form, "out": str(out)}
    export.run(ExportConfig(**told, **settings))
    return out


def there_and_back(folder: Path, form: str, attached: Attached, policy: str) -> Path:
    """A network into a policy file beside `folder`, and from that into a folder of `form`."""
    file = save(folder.with_name(f"{folder.name}.safetensors"), policy, *attached)
    return exported(file, form, folder.with_name(f"{folder.name}_{form}"))


def stored(file: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, in its own type."""
    with safe_open(file, "pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def assert_same_tensors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Names, types and bits."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name


def small_files(folder: Path) -> dict[str, bytes]:
    """All files but the weights."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return {str(f.relative_to(folder)): f.read_bytes() for f in files if not f.name.startswith("model")}


@torch.no_grad()
def velocity(network: FlowBackbone, rows: int = 2) -> Tensor:
    """What a network says to inputs that depend on its sizes alone."""
    spec, generator = network.spec, torch.Generator().manual_seed(0)
    size = (rows, *spec.image_size, 3)
    images = {name: torch.randint(256, size, generator=generator, dtype=torch.uint8) for name in spec.cameras}
    tokens = torch.randint(1, 50, (rows, spec.token_length), generator=generator)
    inputs = PolicyInput(images, torch.randn(rows, spec.state_dim, generator=generator), tokens)
    x = torch.randn(rows, spec.horizon, spec.action_dim, generator=generator)
    return network.velocity(x, torch.linspace(1, 0.3, rows), network.encode(inputs))[0]


def smolvla_folder(place: Path) -> Path:
    """A small SmolVLA as lerobot stores one: half of it in bfloat16, with the output layer that nothing reads."""
    torch.manual_seed(0)
    network, robot = build.build_backbone(PolicyNode("smolvla", options=SMOLVLA_SIZES), simulator())
    out = exported(save(place / "new.safetensors", "smolvla", network, robot), "lerobot", place / "folder")
    tensors = stored(out / "model.safetensors")
    assert SMOLVLA_CARRIED in tensors
    tensors[SMOLVLA_CARRIED] = torch.randn(tensors[SMOLVLA_CARRIED].shape)
    half = {name: value.bfloat16() if "text_model" in name else value for name, value in tensors.items()}
    save_file(half, out / "model.safetensors", {"format": "pt"})
    return out


def attach_any(folder: Path, family: str) -> Attached:
    """The network of a folder of `building_checkpoints.lerobot` or of `smolvla_folder`."""
    if family != "smolvla":
        return attach(folder, family)
    return build.build_backbone(PolicyNode("smolvla", checkpoint=str(folder), options=SMOLVLA_TOLD), simulator())
