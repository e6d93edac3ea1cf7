"""Policies as files: one safetensors file holds weights, embodiment and how the network was configured.

The file's header carries JSON under the key "embodied_rl": format, policy name, its configuration, the names of its
auxiliary targets, the embodiment, adapters, where it came from, and whatever else the writer adds. Nothing in it is
ever executed. A tokenizer and other files, being long, are tensors of bytes.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.checkpoints.weight_names import CheckpointSource, build_empty
from embodied_rl.config.schema import LoraNode
from embodied_rl.interfaces.policy import Actor, FlowBackbone
from embodied_rl.learning import sharded
from embodied_rl.learning.checkpoint import CheckpointError, explain_failed_writes
from embodied_rl.learning.trainable import add_adapters, merge_adapters, read_adapter_settings
from embodied_rl.learning.weights import adopt_whole, gather_whole
from embodied_rl.runs.atomic_write import make_folder, replace_file

FORMATS = (1, 2)
"""Those that are read; the last one is written."""
HEADER = "embodied_rl"
BACKBONE, TOKENIZER, CARRIED, FILE = "backbone.", "tokenizer", "carried/", "file/"
PICKLE_STARTS = (b"PK\x03\x04", b"\x80")


@dataclass(frozen=True)
class PolicyMetadata:
    """What a policy file says of itself.

    Attributes:
        policy: name of the policy plug-in.
        config: its configuration, as plain JSON values.
        embodiment: robot, statistics and vocabulary it was trained with.
        auxiliary_names: what its auxiliary head predicts.
        extra: anything else of JSON, such as where it comes from and how it scored.
        adapters: settings of its adapters, or None without any.
        source: the checkpoint of another project it was made from, or None.
    """

    policy: str
    config: Mapping[str, Any]
    embodiment: Embodiment
    auxiliary_names: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    adapters: LoraNode | None = None
    source: CheckpointSource | None = None

    def to_json(self) -> str:
        """The header's text."""
        data = {
            "format": FORMATS[-1],
            "policy": self.policy,
            "config": dict(self.config),
            "embodiment": self.embodiment.to_dict() | {"tokenizer": ""},
            "auxiliary_names": list(self.auxiliary_names),
            "extra": dict(self.extra),
            "adapters": None if self.adapters is None else asdict(self.adapters),
            "source": None if self.source is None else self.source.to_dict(),
        }
        return json.dumps(data, sort_keys=True)


def save_backbone(
    path: Path,
    backbone: FlowBackbone,
    embodiment: Embodiment,
    policy: str,
    config: Mapping[str, Any],
    *,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a network without sampler and critic, such as a base checkpoint; `dtype` float16 halves the file.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an earlier file is untouched.
    """
    metadata = _described(backbone, embodiment, policy, config, extra)
    _write(path, {BACKBONE + name: value for name, value in backbone.state_dict().items()}, metadata, dtype)


def save_actor(
    path: Path,
    actor: Actor,
    policy: str,
    config: Mapping[str, Any],
    *,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a network with its sampler and critic; `dtype` float16 halves the file.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an earlier file is untouched.
    """
    _write(path, gather_whole(actor), _described(actor.network, actor.embodiment, policy, config, extra), dtype)


def read_metadata(path: Path) -> PolicyMetadata:
    """What a policy file says of itself.

    Raises:
        CheckpointError: missing, damaged, pickled, or no policy file of this format.
    """
    return _read(path, weights=False)[0]


def load_network(
    path: Path, make: Callable[[PolicyMetadata], FlowBackbone], *, merged: bool = True
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network a file holds, with its weights as float32; sampler and critic in the file are left alone.

    Args:
        path: a policy file.
        make: what the file says of itself → a network, which may refuse it; see `check_config`.
        merged: whether adapters become part of the weights they adapt, or stay.

    Raises:
        CheckpointError: missing, damaged or pickled; or its tensors are of another network.
    """
    metadata, tensors = _read(path)
    backbone = build_empty(lambda: make(metadata))
    if metadata.adapters is not None:
        add_adapters(backbone, metadata.adapters)
    own = {name.removeprefix(BACKBONE): value for name, value in tensors.items() if name.startswith(BACKBONE)}
    _load(path, backbone, own, BACKBONE)
    backbone.restore_buffers()
    backbone.source = metadata.source
    if merged:
        merge_adapters(backbone)
    return backbone, metadata.embodiment


def check_config(path: Path, metadata: PolicyMetadata, policy: str, given: Mapping[str, Any]) -> None:
    """Refuse a file of another policy, or of other sizes than those that were given.

    Raises:
        CheckpointError: naming the key that differs.
    """
    if metadata.policy != policy:
        raise CheckpointError(f"{path} holds policy {metadata.policy!r}, not {policy!r}: set policy={metadata.policy}.")
    plain = json.loads(json.dumps(dict(given)))
    for key, value in plain.items():
        if key in metadata.config and metadata.config[key] != value:
            stored = metadata.config[key]
            raise CheckpointError(
                f"{path} was made with policy.{key}={stored}, not {value}: leave policy.{key} out, it is in the file."
            )


def load_actor(path: Path, actor: Actor) -> PolicyMetadata:
    """Put the weights of a file into an actor of the same network, sampler and critic.

    Raises:
        CheckpointError: missing, damaged, pickled, of another network or another robot; the actor is untouched.
    """
    metadata, tensors = _read(path)
    if metadata.embodiment != actor.embodiment:
        mine, stored = actor.embodiment.to_dict(), metadata.embodiment.to_dict()
        names = ", ".join(name for name in mine if mine[name] != stored[name])
        raise CheckpointError(f"{path} was trained for another embodiment; these entries differ: {names}.")
    _load(path, actor, tensors, "")
    return metadata


def _described(
    backbone: FlowBackbone,
    embodiment: Embodiment,
    policy: str,
    config: Mapping[str, Any],
    extra: Mapping[str, Any] | None,
) -> PolicyMetadata:
    names = backbone.spec.auxiliary_names
    return PolicyMetadata(
        policy, config, embodiment, names, extra or {}, read_adapter_settings(backbone), backbone.source
    )


def _write(path: Path, state: Mapping[str, Tensor], metadata: PolicyMetadata, dtype: torch.dtype | None) -> None:
    tensors = {
        name: (value.to(dtype) if dtype and value.is_floating_point() else value).detach().cpu().contiguous()
        for name, value in state.items()
    }
    if metadata.source is not None:
        tensors |= {CARRIED + name: value for name, value in metadata.source.carried.items()}
        tensors |= {FILE + name: _as_tensor(content) for name, content in metadata.source.files.items()}
    if metadata.embodiment.tokenizer:
        tensors[TOKENIZER] = _as_tensor(metadata.embodiment.tokenizer.encode())
    make_folder(path.parent, "run.root")
    with replace_file(path) as temporary, explain_failed_writes(path):
        save_file(tensors, temporary, {HEADER: metadata.to_json()})


def _read(path: Path, weights: bool = True) -> tuple[PolicyMetadata, dict[str, Tensor]]:
    if not path.is_file():
        raise CheckpointError(f"There is no policy file {path}.")
    try:
        with safe_open(path, "pt") as opened:
            header = (opened.metadata() or {}).get(HEADER)
            names = [name for name in opened.keys() if weights or name.startswith((TOKENIZER, FILE))]  # noqa: SIM118
            tensors = {name: opened.get_tensor(name) for name in names}
    except SafetensorError as error:
        # Told apart only now: a sound safetensors file may start with the same bytes as a pickle.
        with path.open("rb") as raw:
            if raw.read(4).startswith(PICKLE_STARTS):
                message = f"{path} is a pickle, which can run any code when opened; policies are safetensors files."
                raise CheckpointError(message) from error
        raise CheckpointError(f"{path} is damaged, or no safetensors file: {error}.") from error
    metadata = _parsed(path, header)
    if TOKENIZER in tensors:
        text = _as_bytes(tensors.pop(TOKENIZER)).decode()
        metadata = replace(metadata, embodiment=replace(metadata.embodiment, tokenizer=text))
    if metadata.source is not None:
        carried = [name for name in tensors if name.startswith(CARRIED)]
        metadata.source.carried |= {name.removeprefix(CARRIED): tensors.pop(name) for name in carried}
        files = [name for name in tensors if name.startswith(FILE)]
        metadata.source.files |= {name.removeprefix(FILE): _as_bytes(tensors.pop(name)) for name in files}
    return metadata, tensors


def _as_tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _as_bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _parsed(path: Path, header: str | None) -> PolicyMetadata:
    if header is None:
        raise CheckpointError(
            f"{path} is a safetensors file, but no policy of this library: it has no {HEADER} header."
        )
    try:
        data = json.loads(header)
        if data["format"] not in FORMATS:
            known = ", ".join(map(str, FORMATS))
            raise CheckpointError(f"{path} has format {data['format']}; this version reads formats {known}.")
        return PolicyMetadata(
            policy=data["policy"],
            config=data["config"],
            embodiment=Embodiment.from_dict(data["embodiment"]),
            auxiliary_names=tuple(data["auxiliary_names"]),
            extra=data["extra"],
            adapters=LoraNode(**data["adapters"]) if data.get("adapters") else None,
            source=CheckpointSource.from_dict(data["source"]) if data.get("source") else None,
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} has a damaged {HEADER} header: {error}.") from error


def _load(path: Path, module: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Copy tensors into a module of exactly the same names and shapes, or name what differs and touch nothing."""
    own = gather_whole(module)
    differences = [f"{prefix}{name} is missing" for name in own.keys() - tensors.keys()]
    differences += [f"{prefix}{name} has no place in this network" for name in tensors.keys() - own.keys()]
    differences += [
        f"{prefix}{name} is {tuple(tensors[name].shape)}, expected {tuple(own[name].shape)}"
        for name in own.keys() & tensors.keys()
        if own[name].shape != tensors[name].shape
    ]
    if differences:
        more = f" ({len(differences) - 3} more)" if len(differences) > 3 else ""
        listed = "; ".join(sorted(differences)[:3])
        raise CheckpointError(
            f"{path} is a checkpoint of another network: {listed}{more}. Check policy.* and sim.name."
        )
    if sharded.find_sharding(module) is not None:
        for name, value in own.items():
            value.copy_(tensors[name])
        adopt_whole(module)
        return
    on_meta = any(value.is_meta for value in own.values())
    module.load_state_dict({name: value.to(own[name].dtype) for name, value in tensors.items()}, assign=on_meta)
