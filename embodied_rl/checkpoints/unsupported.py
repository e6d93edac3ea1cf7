"""Recognition of unsupported checkpoints by their files, configuration, or names of tensors."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from embodied_rl.actors.learning.checkpoint import CheckpointError, unsupported_error
from embodied_rl.checkpoints import foreign
from embodied_rl.config import plugins
from embodied_rl.schema.config_file import read_config

SUPPORTED = "lerobot's pi0, pi05 and smolvla, openpi's π0 and π0.5, and OpenVLA"

OPENPI = "paligemma_with_expert."
"""Prefix of the names of tensors of π0 and π0.5 in openpi."""

PARTS = {
    "gr00t": "GR00T",
    "groot": "GR00T",
    "xvla": "X-VLA",
    "wall_x": "Wall-OSS",
    "wallx": "Wall-OSS",
    "vlmoeforaction": "Wall-OSS",
    "pi0_fast": "π0-FAST",
    "pi0fast": "π0-FAST",
    "spatialvla": "SpatialVLA",
    "molmoact": "MolmoAct",
    "pi0forconditionalgeneration": "transformers' own π0",
}
"""Part of a model's type or class, in lower case → its name."""

SMOLVLA = "vlm_with_expert."
"""Prefix of the names of tensors of lerobot's SmolVLA."""


LEROBOT = {
    "act": "ACT",
    "diffusion": "Diffusion Policy",
    "groot": "GR00T",
    "multi_task_dit": "Multitask DiT",
    "pi0_fast": "π0-FAST",
    "pi0fast": "π0-FAST",
    "reward_classifier": "reward classifier",
    "sac": "SAC",
    "sarm": "SARM",
    "tdmpc": "TD-MPC",
    "vqbet": "VQ-BeT",
    "wall_x": "Wall-X",
    "xvla": "X-VLA",
}
"""`type` in lerobot's config.json → the policy's name."""


def check_lerobot(folder: Path, kind: object) -> None:
    """Check that there is a policy here for the `type` in lerobot's config.json, if it has one.

    Raises:
        CheckpointError: there is none; the message names the policy.
    """
    if isinstance(kind, str) and kind not in plugins.list_names("policies"):
        raise refuse_network(folder, f"lerobot's {LEROBOT.get(kind, ascii(kind)[:40])}")


def explain_folder(folder: Path) -> str | None:
    """Return an error message for a folder of a project with unreadable checkpoints, or None.

    Octo has an example_batch.msgpack. CogACT and OpenVLA, as Prismatic trains them, keep pickled
    weights in checkpoints/ and the key `vla` in config.json; StarVLA has the key `framework` in config.yaml or
    config.json.
    """
    if not folder.is_dir() or not (folder / "dataset_statistics.json").is_file():
        return None
    config: Mapping[str, Any] = {}
    if (folder / "config.json").is_file():
        config = foreign.parse_json(folder / "config.json")
    elif (folder / "config.yaml").is_file():
        config = read_config(folder / "config.yaml")
    what = None
    if (folder / "example_batch.msgpack").is_file():
        what = "Octo"
    elif "framework" in config:
        what = "StarVLA"
    elif "vla" in config:
        what = "CogACT" if "action_model_type" in config else "OpenVLA as Prismatic stores it"
    return None if what is None else str(refuse_network(folder, what))


def name_network(config: Mapping[str, Any], names: Iterable[str] = ()) -> str | None:
    """Return the name of a network from its configuration, or else its tensors; None if unknown."""
    classes = config.get("architectures")
    values = [config.get("type"), *(classes if isinstance(classes, list) else []), config.get("model_type")]
    texts = [text for text in values if isinstance(text, str)]
    for text in texts:
        if known := next((name for part, name in PARTS.items() if part in text.lower()), None):
            return known
    if texts:
        return f"transformers' own π0 ({texts[0]})" if texts[-1] == "pi0" else texts[0]
    smolvla = any(name.removeprefix("model.").startswith(SMOLVLA) for name in names)
    return "lerobot's SmolVLA without its config.json" if smolvla else None


def refuse_network(folder: Path, what: str) -> CheckpointError:
    """Return the error for a folder that holds another network."""
    return unsupported_error(f"{folder} holds {what}, which is not supported yet; supported are {SUPPORTED}.")


def check_openpi(folder: Path, config: Mapping[str, Any]) -> None:
    """Check that a configuration, if there is one, is not one of transformers', which openpi never writes.

    Raises:
        CheckpointError: the folder holds another network; the message names it.
    """
    if "model_type" in config or "architectures" in config:
        raise refuse_network(folder, name_network(config) or "another project's network")


def check_openpi_tensors(folder: Path, names: Iterable[str]) -> None:
    """Check that tensors are those of openpi's networks.

    Raises:
        CheckpointError: the folder holds another network; the message names it, or a tensor.
    """
    listed = list(names)
    if not any(name.removeprefix("model.").startswith(OPENPI) for name in listed):
        first = f"an unknown network (with a tensor {listed[0]!r})" if listed else "no tensors"
        raise refuse_network(folder, name_network({}, listed) or first)
