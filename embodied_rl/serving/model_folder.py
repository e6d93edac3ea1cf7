"""Safety checks of untrusted vision-language model folders, before anything is loaded.

Loading never executes code of the folder, opens a pickle, or downloads what its files point to.
"""

from pathlib import Path
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import check_inside, check_name, read_json

LARGEST_JSON = 64_000_000
"""Maximum size in bytes of a settings file or of the tokenizer."""
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")
FORBIDDEN = {
    "auto_map": "asks for custom code (auto_map), and no code of a folder is run",
    "custom_pipelines": "asks for custom code (custom_pipelines), and no code of a folder is run",
    "audio_tokenizer": "points to another model (audio_tokenizer), which is not loaded",
    "quantization_config": "is quantised, which this server does not read; take the unquantised weights",
}
"""Refused settings keys, at any depth, with the reason."""


def check_folder(folder: Path) -> str:
    """Check the folder of a vision-language model of transformers; return its `model_type`, or raise `UserError`."""
    for file in sorted(folder.iterdir()):
        check_inside(folder, file)
        if file.suffix == ".py":
            raise UserError(
                f"{folder} contains code, {file.name}, and no code of a folder is run.", code="model-contains-code"
            )
    if (folder / "adapter_config.json").exists():
        raise UserError(
            f"{folder} holds adapters (adapter_config.json): merge them into their model first.",
            code="model-adapters-only",
        )
    for file in sorted(folder.glob("*.json")):
        _check_settings(file)
    config = read_json(folder / "config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str):
        raise UserError(f"{folder / 'config.json'} names no model_type.", code="model-damaged")
    _check_weights(folder)
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{folder} has no tokenizer.json.", code="tokenizer-missing")
    return kind


def _check_settings(file: Path) -> None:
    """Check the size of a settings file, and every key at any depth."""
    if (size := file.stat().st_size) > LARGEST_JSON:
        raise UserError(f"{file} has {size} bytes, and may have {LARGEST_JSON}.", code="model-damaged")
    if file.name == "tokenizer.json":  # its vocabulary may contain any of these keys
        return
    waiting: list[Any] = [read_json(file)]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting += found
        if not isinstance(found, dict):
            continue
        waiting += found.values()
        for key, value in found.items():
            if key in FORBIDDEN and value:
                code = "model-contains-code" if key in ("auto_map", "custom_pipelines") else "model-unsupported"
                raise UserError(f"{file} {FORBIDDEN[key]}.", code=code)
            if key.endswith("attn_implementation") and "/" in str(value):
                raise UserError(
                    f"{file} asks for code from a hub ({key}), and no such code is run.", code="model-contains-code"
                )


def _check_weights(folder: Path) -> None:
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX)
        names = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{folder / INDEX} is damaged: it has no weight_map.", code="model-damaged")
        for name in set(names.values()):
            check_name(name, folder / INDEX)
            if not name.endswith(".safetensors"):
                raise UserError(
                    f"{folder / INDEX} names {name!r:.100}; weights are read from safetensors alone.",
                    code="model-damaged",
                )
        return
    if (folder / "model.safetensors").is_file():
        return
    pickled = [file.name for file in sorted(folder.iterdir()) if file.suffix in PICKLES]
    if pickled:
        raise UserError(
            f"{folder} has its weights in {pickled[0]}, a pickle or the like, which could run code when it is opened: "
            "convert it to safetensors where you trust it.",
            code="model-is-pickle",
        )
    raise UserError(f"{folder} has no weights: neither model.safetensors nor {INDEX}.", code="weights-missing")
