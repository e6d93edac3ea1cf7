"""Descriptions of paths that are not checkpoints, with the step that makes a checkpoint of their content.

Only names of files, their first bytes and JSON are read.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import read_json

ADAPTERS = "adapter_config.json"
"""File of PEFT, in the folder of adapter_model.safetensors."""

LEROBOT_POLICY = "pretrained_model"
"""lerobot's folder of a policy, inside the folder of a checkpoint of its training."""

ORBAX = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "params/_METADATA", "params/manifest.ocdbt")
"""Files of Orbax, which stores checkpoints of JAX; openpi's lie in `params`."""

PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
PICKLE_STARTS = (b"PK\x03\x04", b"\x80")
HUB_NAME = re.compile(r"(hf://)?[\w][\w.-]*/[\w][\w.-]*\Z")


def explain_path(path: Path) -> str | None:
    """Return a description of a path that is not a checkpoint, with a remedy, or None if its content is unknown."""
    if path.is_dir():
        return next((text for text in _explain_folder(path) if text is not None), None)
    if path.exists():
        with path.open("rb") as file:
            start = file.read(4)
        if path.suffix in PICKLED or start.startswith(PICKLE_STARTS):
            return (
                f"{path} is a pickle, which can run any code when it is opened, and is not read. Store its weights as "
                "safetensors with the project that it comes from, and give the resulting folder or file."
            )
        return f"{path} is a file, but not a policy: give a .safetensors file, or the folder of a run or checkpoint."
    text = path.as_posix().replace("hf:/", "hf://")
    if not HUB_NAME.match(text) or path.parent.exists():
        return None
    return (
        f"There is no file or folder {path}. If it is a name on Hugging Face's hub, type "
        f"hf:{text.removeprefix('hf://')}, which downloads it."
    )


def explain_adapters(folder: Path) -> str | None:
    """Return a description of a folder of PEFT adapters, or None if the folder holds none."""
    if not (folder / ADAPTERS).is_file():
        return None
    try:
        content = read_json(folder / ADAPTERS)
        base = content.get("base_model_name_or_path") if isinstance(content, dict) else None
    except UserError:
        base = None
    of = f" Their base model is {base!r:.200}." if isinstance(base, str) and base else ""
    return (
        f"{folder} holds adapters (PEFT's LoRA), not the network that they change.{of} Merge them in the "
        "project that trained them, with merge_and_unload() of PEFT, save the whole policy, and give its folder."
    )


def _explain_folder(folder: Path) -> Iterator[str | None]:
    yield explain_adapters(folder)
    places = (folder, folder / "last", folder / "checkpoints" / "last")
    found = [place / LEROBOT_POLICY for place in places if (place / LEROBOT_POLICY / "config.json").is_file()]
    found += islice(sorted(folder.glob(f"checkpoints/*/{LEROBOT_POLICY}"), reverse=True), 1)
    if found:
        yield f"{folder} is a folder of lerobot's training, which contains its policy. Give {found[0]}."
    if any((folder / name).exists() for name in ORBAX):
        yield (
            f"{folder} is a checkpoint of JAX (Orbax), such as openpi's first ones. openpi converts π0 and π0.5, "
            "and lerobot publishes π0-FAST: uv run "
            f"examples/convert_jax_model_to_pytorch.py --checkpoint_dir {folder} --config_name <its configuration> "
            "--output_path <new folder>; then give the new folder."
        )
    if (folder / "meta/info.json").is_file():
        yield (
            f"{folder} is a LeRobotDataset, not a policy. To clone its demonstrations: embodied-rl sft "
            f"dataset={folder} sim=<simulator> algo=sft_vla."
        )
    if (folder / "format.json").is_file() and (folder / "texts.jsonl").is_file():
        yield f"{folder} is a replay storage (docs/replay.md), not a policy."
    if (folder / "multirun.yaml").is_file():
        yield f"{folder} is the record of a sweep; its runs lie in other folders below run.root. Give one of these."
