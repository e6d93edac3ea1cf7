"""Read and write critics: one safetensors file with the weights and a header that describes the network.

The header holds JSON under the key "embodied_rl_critic". Opening a file executes nothing of it: the policy that it
names is looked up among the installed ones.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning.checkpoint import CheckpointError, explain_failed_writes
from embodied_rl.assembly.networks import make_backbone
from embodied_rl.checkpoints.policy_format import PICKLE_STARTS
from embodied_rl.config import plugins
from embodied_rl.config.freeze import freeze_config, thaw_config
from embodied_rl.critic.network import CriticConfig, ProgressCritic
from embodied_rl.schema.untrusted_settings import freeze_file
from embodied_rl.system.atomic_write import make_folder, replace_file
from embodied_rl.system.untrusted_files import name_file, parse_json

FORMAT = 1
HEADER = "embodied_rl_critic"
LARGEST_FILE = 4_000_000_000
"""Maximum bytes of a critic's file."""
LARGEST_SPARE = 64_000_000
"""Maximum bytes of the backbone that the file does not hold: its action expert."""


@dataclass(frozen=True)
class CriticHeader:
    """What a critic's file says about itself: the backbone's plug-in, and what builds the network around it.

    `config` is the backbone's, `critic` the sizes of what was trained, `auxiliary_names` what the localisation head
    predicts. All values are plain JSON.
    """

    format: int
    policy: str
    config: dict[str, Any]
    auxiliary_names: tuple[str, ...]
    embodiment: dict[str, Any]
    critic: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=dict)


def save_critic(critic: ProgressCritic, path: Path, provenance: Mapping[str, Any]) -> None:
    """Write a critic, without the parts of the backbone that it does not use.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an existing file stays unchanged.
    """
    header = CriticHeader(
        FORMAT,
        critic.policy,
        thaw_config(critic.backbone.config),
        tuple(critic.backbone.spec.auxiliary_names),
        critic.embodiment.to_dict(),
        asdict(critic.config),
        dict(provenance),
    )
    tensors = {name: value.detach().float().cpu().contiguous() for name, value in critic.named_weights().items()}
    make_folder(path.parent, "out")
    with replace_file(path, "out") as temporary, explain_failed_writes(path):
        save_file(tensors, temporary, {HEADER: json.dumps(asdict(header), sort_keys=True)})


def load_critic(path: Path) -> ProgressCritic:
    """Open a critic's file.

    Raises:
        CheckpointError: the file is missing, damaged, a pickle, too large, or not a critic of a known format, or its
            weights do not fit its header; the message names the entry.
        UserError: its policy is not installed.
    """
    header, shapes = _read_header(path)
    with name_file(path):
        critic = _build(header, shapes, path)
    with safe_open(path, "pt") as opened, torch.no_grad():
        for name, value in critic.named_weights().items():
            tensor = opened.get_tensor(name)
            if not torch.isfinite(tensor).all():
                raise CheckpointError(
                    f"{path} is damaged: {name} holds numbers that are none.", code="checkpoint-damaged"
                )
            value.copy_(tensor)
    critic.name, critic.provenance = path.stem, header.provenance
    return critic.eval()


def read_header(path: Path) -> CriticHeader:
    """Read what a critic's file says about itself."""
    return _read_header(path)[0]


def _read_header(path: Path) -> tuple[CriticHeader, dict[str, tuple[int, ...]]]:
    if not path.is_file():
        raise CheckpointError(
            f"There is no critic {path}. `embodied-rl critic train out={path}` makes one.", code="checkpoint-missing"
        )
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise CheckpointError(
            f"{path} has {size} bytes; a critic has at most {LARGEST_FILE}.", code="checkpoint-damaged"
        )
    try:
        with safe_open(path, "pt") as opened:
            text = (opened.metadata() or {}).get(HEADER)
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            kinds = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        with path.open("rb") as raw:
            if raw.read(4).startswith(PICKLE_STARTS):
                raise CheckpointError(
                    f"{path} is a pickle, which can run any code when opened; critics are safetensors files.",
                    code="checkpoint-is-pickle",
                ) from None
        raise CheckpointError(
            f"{path} is damaged, or no safetensors file: {error}.", code="checkpoint-damaged"
        ) from error
    if text is None:
        raise CheckpointError(
            f"{path} is a safetensors file, but no critic of this library: it has no {HEADER} header.",
            code="checkpoint-not-a-critic",
        )
    if wrong := sorted(name for name, kind in kinds.items() if kind != "F32"):
        raise CheckpointError(
            f"{path}: {wrong[0]} is {kinds[wrong[0]]}; a critic's weights are F32.", code="checkpoint-damaged"
        )
    data = parse_json(text, f"{path}, in its {HEADER} header,", CheckpointError)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} has a damaged {HEADER} header: it is no mapping.", code="checkpoint-damaged")
    if data.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {data.get('format')!r:.40}; this version reads format {FORMAT}.",
            code="checkpoint-format-unknown",
        )
    with name_file(path):
        return freeze_config(CriticHeader, data, HEADER), shapes


def _build(header: CriticHeader, shapes: Mapping[str, tuple[int, ...]], path: Path) -> ProgressCritic:
    """Build the network of a header, after checking in outline that the file's weights fill it."""
    cls = plugins.find_plugin("policies", header.policy)
    options = freeze_file(cls.Config, header.config, path, f"{HEADER}.config")
    embodiment = Embodiment.from_dict(header.embodiment)
    sizes = freeze_config(CriticConfig, header.critic, f"{HEADER}.critic")

    def build() -> ProgressCritic:
        network = make_backbone(cls, options, embodiment, header.auxiliary_names)
        return ProgressCritic(network, embodiment, header.policy, sizes)

    try:
        with torch.device("meta"):
            outline = build()
    except (RuntimeError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise CheckpointError(
            f"{path}: its sizes make no network: {' '.join(str(error).split()):.200}", code="checkpoint-damaged"
        ) from error
    own = {name: tuple(value.shape) for name, value in outline.named_weights().items()}
    differences = [f"{name} is missing" for name in own.keys() - shapes.keys()]
    differences += [f"{name} has no place in this critic" for name in shapes.keys() - own.keys()]
    both = own.keys() & shapes.keys()
    differences += [f"{name} is {shapes[name]}, expected {own[name]}" for name in both if own[name] != shapes[name]]
    if differences:
        more = f" ({len(differences) - 3} more)" if len(differences) > 3 else ""
        raise CheckpointError(
            f"{path} is damaged: {'; '.join(sorted(differences)[:3])}{more}.", code="checkpoint-damaged"
        )
    held = sum(value.nbytes for value in outline.named_weights().values())
    spare = sum(value.nbytes for value in (*outline.parameters(), *outline.buffers())) - held
    if spare > LARGEST_SPARE:
        raise CheckpointError(
            f"{path} asks for {spare} bytes of network that it does not hold; it is not opened.",
            code="checkpoint-damaged",
        )
    return build()
