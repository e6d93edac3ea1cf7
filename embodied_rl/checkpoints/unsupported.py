"""Recognition of unsupported checkpoints by their files, configuration, or names of tensors."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from embodied_rl.actors.learning.checkpoint import CheckpointError, unsupported_error
from embodied_rl.checkpoints import foreign
from embodied_rl.config import plugins
from embodied_rl.schema.config_file import read_config

SUPPORTED = (
    "lerobot's pi0, pi05, pi0_fast, smolvla, groot (N1.7), act and diffusion, openpi's π0 and π0.5, NVIDIA's GR00T "
    "N1.7, and OpenVLA"
)

OPENPI = "paligemma_with_expert."
"""Prefix of the names of tensors of π0 and π0.5 in openpi."""

PARTS = {
    "gr00tn1d6": "GR00T N1.6",
    "gr00t_n1d6": "GR00T N1.6",
    "gr00t_n1_5": "GR00T N1.5",
    "gr00t": "GR00T N1",
    "groot": "GR00T",
    "xvla": "X-VLA",
    "wall_x": "Wall-X",
    "wallx": "Wall-X",
    "vlmoeforaction": "Wall-X",
    "pi0_fast": "π0-FAST",
    "pi0fast": "π0-FAST",
    "spatialvla": "SpatialVLA",
    "molmoact2": "MolmoAct2",
    "molmoact": "MolmoAct",
    "smolvla": "a successor of SmolVLA",
    "vla_jepa": "VLA-JEPA",
    "pi0forconditionalgeneration": "transformers' own π0",
}
"""Part of a model's type or class, in lower case → its name; the first part that fits counts."""

EAGLE = (
    "a port of its Eagle vision-language model, of which transformers has none (the folder brings code, which is never "
    "run), beside gr00t/action_head.py, whose layers are almost the same; NVIDIA's N1.7 replaces it"
)
NEEDS = {
    "GR00T N1": EAGLE,
    "GR00T N1.5": EAGLE,
    "GR00T N1.6": EAGLE,
    "X-VLA": (
        "a FlowBackbone on transformers' Florence-2 with X-VLA's transformer over actions and its prompts of each "
        "robot; its flow predicts the action itself, of which a velocity is to be made; and its spaces of actions"
    ),
    "Wall-X": (
        "a FlowBackbone on transformers' Qwen2.5-VL with one feed-forward block for words and one for actions in each "
        "layer, and attention in both directions among the actions; its FAST tokens would be a SequenceBackbone"
    ),
    "MolmoAct2": (
        "Molmo2's vision-language model, of which transformers has none, its expert that attends to each layer's keys "
        "and values, and the state as words; its FAST tokens would be a SequenceBackbone"
    ),
    "a successor of SmolVLA": (
        "what differs from SmolVLA: smolvla/network.py has its attention, smolvla/config.py the names of its tensors, "
        "and lerobot_settings.py the keys of its config.json"
    ),
    "VLA-JEPA": (
        "a FlowBackbone on transformers' Qwen3-VL, as gr00t/vision_language.py has it, with its head of actions; the "
        "world model is for training alone"
    ),
}
"""Name of a network → what support for it takes, for a contributor to begin; docs/checkpoints.md shows this table."""

SMOLVLA = "vlm_with_expert."
"""Prefix of the names of tensors of lerobot's SmolVLA."""


LEROBOT = {
    "molmoact2": "MolmoAct2",
    "multi_task_dit": "Multitask DiT",
    "pi0fast": "π0-FAST of lerobot before 0.4",
    "reward_classifier": "reward classifier",
    "sac": "SAC",
    "sarm": "SARM",
    "smolvla2": "a successor of SmolVLA",
    "tdmpc": "TD-MPC",
    "vla_jepa": "VLA-JEPA",
    "vqbet": "VQ-BeT",
    "wall_x": "Wall-X",
    "xvla": "X-VLA",
}
"""`type` in lerobot's config.json → the policy's name."""

READ = {"groot": "gr00t"}
"""`type` in lerobot's config.json → our name of the policy, where it is another."""

GR00T_N1_7 = ("gr00tn1d7", "gr00t_n1d7", "gr00t_n1_7")
"""Types and classes of GR00T N1.7, in lower case."""


def check_lerobot(folder: Path, kind: object) -> None:
    """Check that there is a policy here for the `type` in lerobot's config.json, if it has one.

    Raises:
        CheckpointError: there is none; the message names the policy.
    """
    if isinstance(kind, str) and READ.get(kind, kind) not in plugins.list_names("policies"):
        raise refuse_network(folder, LEROBOT.get(kind, ascii(kind)[:40]), "lerobot's ")


def check_gr00t(folder: Path, config: Mapping[str, Any]) -> None:
    """Check that a folder of NVIDIA's GR00T is of version N1.7.

    Raises:
        CheckpointError: it is another version; the message names it.
    """
    classes = config.get("architectures")
    texts = [config.get("model_type"), *(classes if isinstance(classes, list) else [])]
    if not any(isinstance(text, str) and text.lower() in GR00T_N1_7 for text in texts):
        raise refuse_network(folder, name_network(config) or "GR00T")


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


def refuse_network(folder: Path, what: str, whose: str = "") -> CheckpointError:
    """Return the error for a folder that holds another network, with what support for it takes."""
    needs = f" It takes {NEEDS[what]}." if what in NEEDS else ""
    name = whose + what.removeprefix("a ") if whose else what
    return unsupported_error(f"{folder} holds {name}, which is not supported yet; supported are {SUPPORTED}.{needs}")


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
