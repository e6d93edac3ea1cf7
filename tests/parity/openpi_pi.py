"""What openpi's own PyTorch networks compute and store: run with a Python in which they work.

    PYTHONPATH=OPENPI/src:../.. python openpi_pi.py keys pi0 golden/keys_pi0_openpi.json
    PYTHONPATH=OPENPI/src:../.. python openpi_pi.py check pi0 golden/pi0_lerobot.safetensors  # largest differences
    PYTHONPATH=OPENPI/src:../.. python openpi_pi.py checkpoint pi0 FOLDER  # a small one, written by openpi
    PYTHONPATH=OPENPI/src:../.. python openpi_pi.py load pi0 FOLDER        # does openpi take ours?

transformers 4.53.2 with openpi's `transformers_replace` files in it; JAX is not needed. `checkpoint` needs numpydantic,
too. Made with commit 15a9616.
"""

# pyright: reportMissingImports=false

import importlib
import importlib.util
import json
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, load_model, save_model

from tests.support import key_lists, pi_inputs
from tests.support import pi_sizes as sizes

MADE_BY = {"openpi": "15a9616", "transformers": version("transformers"), "torch": version("torch")}
FULL = {
    "gemma_2b": {"width": 2048, "depth": 18, "mlp_dim": 16384, "num_heads": 8, "num_kv_heads": 1, "head_dim": 256},
    "gemma_300m": {"width": 1024, "depth": 18, "mlp_dim": 4096, "num_heads": 8, "num_kv_heads": 1, "head_dim": 256},
}  # openpi/models/gemma.py needs JAX, and this is all that the networks take from it
SMALL = {"gemma_2b": sizes.LANGUAGE, "gemma_300m": sizes.EXPERT}


def without_jax(variants: dict[str, Any]) -> None:
    """Stand in for the modules of openpi that import JAX: the networks need a table of sizes from them, no more."""
    for name in ("openpi.models", "openpi.models.gemma", "openpi.shared", "openpi.shared.image_tools"):
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = []
        parent, _, child = name.rpartition(".")
        setattr(sys.modules.get(parent, module), child, module)
    sys.modules["openpi.models.gemma"].get_config = lambda name: SimpleNamespace(**variants[name])  # pyright: ignore


def built(family: str, dtype: str, horizon: int, dims: int) -> Any:
    fixed = {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m", "pytorch_compile_mode": None}
    config = SimpleNamespace(pi05=family == "pi05", dtype=dtype, action_horizon=horizon, action_dim=dims, **fixed)
    return importlib.import_module("openpi.models_pytorch.pi0_pytorch").PI0Pytorch(config)


def small(family: str) -> Any:
    """openpi's network, as small as lerobot's in `lerobot_pi`, with the recipe's weights."""
    without_jax(SMALL)
    module = importlib.import_module("openpi.models_pytorch.gemma_pytorch")
    vlm, expert = module.PaliGemmaForConditionalGeneration, module.GemmaForCausalLM

    def small_vlm(config: Any) -> Any:
        config.text_config.vocab_size = sizes.VOCABULARY
        for name, value in (sizes.VISION | {"projection_dim": sizes.LANGUAGE["width"]}).items():
            setattr(config.vision_config, name, value)
        return vlm(config)

    def small_expert(config: Any) -> Any:
        config.vocab_size = sizes.VOCABULARY
        return expert(config)

    with (
        patch.object(module, "PaliGemmaForConditionalGeneration", small_vlm),
        patch.object(module, "GemmaForCausalLM", small_expert),
    ):
        network = built(family, "float32", sizes.CHUNK, sizes.PADDED_DIM).eval()
    filled = pi_inputs.weights({f"model.{name}": tensor.shape for name, tensor in network.state_dict().items()})
    network.load_state_dict({name.removeprefix("model."): tensor for name, tensor in filled.items()})
    return network


def write_keys(family: str, path: str) -> None:
    """Keys and shapes at full size; which are tied, and so which one `save_model` leaves out, is in `tied`."""
    without_jax(FULL)
    with torch.device("meta"):
        network, half = (built(family, dtype, 50, 32) for dtype in ("float32", "bfloat16"))
    note = "of tied tensors a file holds the alphabetically first, and its header maps the other name to that"
    key_lists.write(path, network, half.state_dict(), note, MADE_BY)


def answers(family: str, network: Any) -> dict[str, torch.Tensor]:
    """Actions and training loss for the inputs of `pi_inputs`."""
    given = pi_inputs.network_inputs(family)
    network._preprocess_observation = lambda *_, **__: tuple(given.values())
    with torch.no_grad():
        seen = SimpleNamespace(state=given["state"])
        actions = network.sample_actions("cpu", seen, noise=pi_inputs.chunk("noise"), num_steps=sizes.STEPS)
        loss = network(None, pi_inputs.chunk("actions"), pi_inputs.chunk("noise"), pi_inputs.loss_times())
    return {"actions": actions, "loss": loss}


def check(family: str, golden: str) -> None:
    """Largest differences from lerobot's tensors, as JSON."""
    expected = load_file(golden)
    pairs = answers(family, small(family)).items()
    differences = {name: float((expected[f"network.{name}"] - value).abs().max()) for name, value in pairs}
    print(json.dumps({"differences": differences} | MADE_BY))


def checkpoint(family: str, folder: str) -> None:
    """A folder such as openpi's training leaves behind, less the optimizer; the robot's name is "tiny"."""
    network, path = small(family), Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_model(network, str(path / "model.safetensors"))
    normalize = _normalize()
    dims = {"state": ("state", sizes.STATE_DIM), "actions": ("action", sizes.ACTION_DIM)}
    known = {name: sizes.statistics(*arguments) for name, arguments in dims.items()}
    kept = {name: {key: known[name][key] for key in ("mean", "std", "q01", "q99")} for name in known}
    normalize.save(path / "assets" / "tiny", {name: normalize.NormStats(**values) for name, values in kept.items()})


def _normalize() -> Any:
    """openpi/shared/normalize.py: its folder is one of those that `without_jax` stands in for."""
    import openpi

    path = Path(openpi.__path__[0]) / "shared" / "normalize.py"
    spec = importlib.util.spec_from_file_location("normalize", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["normalize"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(family: str, folder: str) -> None:
    """Keys that openpi misses or does not know in a checkpoint, and the actions it computes, as JSON."""
    network = small(family)
    for parameter in network.parameters():  # so that nothing of the recipe's answers for the file
        torch.nn.init.zeros_(parameter)
    missing, unexpected = load_model(network, str(Path(folder) / "model.safetensors"), strict=False)
    found = {"missing": sorted(missing), "unexpected": sorted(unexpected)}
    print(json.dumps(found | {name: value.tolist() for name, value in answers(family, network).items()} | MADE_BY))


if __name__ == "__main__":
    {"keys": write_keys, "check": check, "checkpoint": checkpoint, "load": load}[sys.argv[1]](*sys.argv[2:])
