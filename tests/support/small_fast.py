"""A small π0-FAST with the recipe's weights, and what lerobot's own network made of the recipe's inputs."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from embodied_rl.assembly import build
from embodied_rl.checkpoints import weight_names
from embodied_rl.interfaces.backbone import PolicyInput
from embodied_rl.schema import PolicyNode
from embodied_rl_policies.pi import fast_config
from embodied_rl_policies.pi.pi0_fast import Pi0Fast, Pi0FastConfig
from tests.support import building_checkpoints as building
from tests.support import fast_sizes, pi_inputs, recipe
from tests.support import pi_sizes as sizes
from tests.support.small_pi import SIZES
from tests.support.tiny_tokenizer import SPECIAL
from tests.support.using_checkpoints import Attached

GOLDEN = load_file(building.GOLDEN / "pi0_fast_lerobot.safetensors")
CLOSE = {"rtol": 0.0, "atol": 1e-5}
FLOW = ("expert_width", "expert_hidden", "action_dim", "state_dim", "vocabulary")
PROMPT_STEP = "pi0_fast_prepare_state_tokenizer_processor_step"


def golden_rows(name: str) -> list[list[int]]:
    """Ids that lerobot's side stored padded with -1."""
    return [[code for code in row if code >= 0] for row in GOLDEN[name].tolist()]


def config(**changes: Any) -> Pi0FastConfig:
    text = (fast_sizes.FAST / "bpe_tokenizer" / "tokenizer.json").read_text()
    told = json.loads((fast_sizes.FAST / "processor_config.json").read_text())
    files = {"processor": told, "tokenizer": text, "tokenizer_config": {}}
    ids = fast_config.find_ids(fast_sizes.prompt_tokenizer())
    longest = fast_sizes.WRITTEN - len(fast_sizes.OPENING)
    own = {"vocabulary": fast_sizes.VOCABULARY, "token_length": fast_sizes.PROMPT_LENGTH, "longest": longest}
    towers = {key: value for key, value in SIZES.items() if key not in FLOW}
    return Pi0FastConfig(
        **towers | own | {"skipped": fast_sizes.SKIPPED} | ids | fast_config.read_fast(files, {}) | changes
    )


def build_network(cameras: tuple[str, ...] = tuple(sizes.CAMERAS), **changes: Any) -> Pi0Fast:
    """With fresh weights."""
    made, robot = config(**changes), (sizes.ACTION_DIM, sizes.STATE_DIM)
    torch.manual_seed(0)
    return Pi0Fast(made, *robot, cameras, (sizes.IMAGE_SIZE,) * 2, made.vocabulary, made.token_length).eval()


def filled(cameras: tuple[str, ...] = tuple(sizes.CAMERAS)) -> Pi0Fast:
    """With the recipe's weights, under lerobot's names."""
    network = build_network(cameras)
    names = {name: "model." + weight_names.to_their_name(Pi0Fast, name) for name in network.state_dict()}
    given = recipe.weights({names[name]: tuple(value.shape) for name, value in network.state_dict().items()})
    network.load_state_dict({name: torch.from_numpy(given[theirs]) for name, theirs in names.items()})
    return network


def row(index: int) -> tuple[Pi0Fast, PolicyInput]:
    """One row of the recipe's inputs, and a network with the cameras that row has; what is absent takes no place."""
    given = pi_inputs.network_inputs("pi05")
    present = [bool(mask[index]) for mask in given["masks"]]
    images = {
        name: ((pixels[index : index + 1] + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
        for name, pixels, there in zip(sizes.CAMERAS, given["images"], present, strict=True)
        if there
    }
    tokens = torch.from_numpy(fast_sizes.prompts())[[index]]
    return filled(tuple(images)), PolicyInput(images, torch.zeros(1, sizes.STATE_DIM), tokens)


def close(found: list[list[int]], network: Pi0Fast) -> Tensor:
    """Rows of ids as sequences int64 [n, M]."""
    return torch.tensor([[*ids, *[network.choices] * (network.longest - len(ids))] for ids in found])


def folder(
    path: Path, *, spoil: str = "raise SystemExit('code was run')", stats: dict[str, Any] | None = None, **changes: Any
) -> Path:
    """A folder such as lerobot's training leaves behind, with the recipe's weights; `spoil` is its Python file."""
    network = build_network()
    shapes = {
        "model." + weight_names.to_their_name(Pi0Fast, name): value.shape
        for name, value in network.state_dict().items()
    }
    weights = {name: torch.from_numpy(value) for name, value in recipe.weights(shapes).items()}
    modes = dict.fromkeys(("STATE", "ACTION"), "MEAN_STD")
    building.lerobot(path, "pi05", weights=weights, modes=modes, stats=stats)
    told = json.loads((path / "config.json").read_text())
    told = {key: value for key, value in told.items() if key not in ("num_inference_steps", "min_period", "max_period")}
    own = {
        "type": "pi0_fast",
        "temperature": 0.0,
        "use_kv_cache": True,
        "action_tokenizer_name": "lerobot/fast-action-tokenizer",
    }
    (path / "config.json").write_text(json.dumps(told | own | fast_sizes.configuration() | changes, indent=4))
    before = json.loads((path / "policy_preprocessor.json").read_text())
    names = [step["registry_name"] for step in before["steps"]]
    before["steps"][names.index(building.PROMPT_STEP["pi05"])]["registry_name"] = PROMPT_STEP
    words = before["steps"][names.index("tokenizer_processor")]
    words["config"]["max_length"] = fast_sizes.PROMPT_LENGTH
    settings: dict[str, Any] = {"max_action_tokens": fast_sizes.WRITTEN + 1, "fast_skip_tokens": fast_sizes.SKIPPED}
    settings |= {"action_tokenizer_name": own["action_tokenizer_name"], "trust_remote_code": True}
    step = {"registry_name": "action_tokenizer_processor", "config": settings}
    before["steps"].insert(names.index("tokenizer_processor") + 1, step)
    (path / "policy_preprocessor.json").write_text(json.dumps(before, indent=2))
    prompt = fast_sizes.prompt_tokenizer()
    prompt.add_special_tokens(list(SPECIAL.values()))
    (path / "tokenizer" / "tokenizer.json").write_text(prompt.to_str(pretty=True))
    shutil.copytree(fast_sizes.FAST, path / "action_tokenizer")
    (path / "action_tokenizer" / "processing_action_tokenizer.py").write_text(spoil)
    return path


def attach(path: Path, **node: Any) -> Attached:
    """The network of a folder, for the simulator of `building`."""
    given = {"options": building.OPTIONS, "cameras": building.CAMERAS} | node
    return build.build_backbone(PolicyNode("pi0_fast", checkpoint=str(path), **given), building.simulator())
