"""Policies as files: one safetensors file holds weights, embodiment and how the network was configured.

The file's header carries JSON under the key "embodied_rl": format, policy name, its configuration, the names of its
auxiliary targets, the embodiment, and whatever else the writer adds. Nothing in it is ever executed.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.interfaces.policy import FlowBackbone
from embodied_rl.learning.checkpoint import CheckpointError, failed_writes
from embodied_rl.runs.storage import explained, sync_folder

FORMAT = 1
HEADER = "embodied_rl"
BACKBONE = "backbone."
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
    """

    policy: str
    config: Mapping[str, Any]
    embodiment: Embodiment
    auxiliary_names: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The header's text."""
        data = {
            "format": FORMAT,
            "policy": self.policy,
            "config": dict(self.config),
            "embodiment": self.embodiment.to_dict(),
            "auxiliary_names": list(self.auxiliary_names),
            "extra": dict(self.extra),
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
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a network without sampler and critic, such as a base checkpoint; `dtype` float16 halves the file.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an earlier file is untouched.
    """
    metadata = PolicyMetadata(policy, config, embodiment, backbone.spec.auxiliary_names, extra or {})
    _write(path, {BACKBONE + name: value for name, value in backbone.state_dict().items()}, metadata, dtype)


def save_actor(
    path: Path,
    actor: FlowActor,
    policy: str,
    config: Mapping[str, Any],
    *,
    extra: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a network with its sampler and critic; `dtype` float16 halves the file.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an earlier file is untouched.
    """
    names = actor.backbone.spec.auxiliary_names
    _write(path, actor.state_dict(), PolicyMetadata(policy, config, actor.embodiment, names, extra or {}), dtype)


def read_metadata(path: Path) -> PolicyMetadata:
    """What a policy file says of itself.

    Raises:
        CheckpointError: missing, damaged, pickled, or no policy file of this format.
    """
    return _read(path)[0]


def load_parts(
    path: Path,
    policy: str,
    config: Mapping[str, Any],
    make: Callable[[Embodiment, tuple[str, ...]], FlowBackbone],
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network a file holds, with its weights as float32; sampler and critic in the file are left alone.

    Args:
        path: a policy file.
        policy: name of the configured policy plug-in.
        config: its configuration.
        make: embodiment and auxiliary names → a network of that configuration.

    Raises:
        CheckpointError: missing, damaged or pickled; or another network, naming the configuration key that differs.
    """
    metadata, tensors = _read(path)
    _check_config(path, metadata, policy, config)
    backbone = make(metadata.embodiment, metadata.auxiliary_names)
    own = {name.removeprefix(BACKBONE): value for name, value in tensors.items() if name.startswith(BACKBONE)}
    _load(path, backbone, own, BACKBONE)
    return backbone, metadata.embodiment


def load_actor(path: Path, actor: FlowActor) -> PolicyMetadata:
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


def _write(path: Path, state: Mapping[str, Tensor], metadata: PolicyMetadata, dtype: torch.dtype) -> None:
    tensors = {
        name: (value.to(dtype) if value.is_floating_point() else value).detach().cpu().contiguous()
        for name, value in state.items()
    }
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with failed_writes(path):
                save_file(tensors, temporary, {HEADER: metadata.to_json()})
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def _read(path: Path) -> tuple[PolicyMetadata, dict[str, Tensor]]:
    if not path.is_file():
        raise CheckpointError(f"There is no policy file {path}.")
    try:
        with safe_open(path, "pt") as opened:
            header = (opened.metadata() or {}).get(HEADER)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        # Told apart only now: a sound safetensors file may start with the same bytes as a pickle.
        with path.open("rb") as raw:
            if raw.read(4).startswith(PICKLE_STARTS):
                message = f"{path} is a pickle, which can run any code when opened; policies are safetensors files."
                raise CheckpointError(message) from error
        raise CheckpointError(f"{path} is damaged, or no safetensors file: {error}.") from error
    return _parsed(path, header), tensors


def _parsed(path: Path, header: str | None) -> PolicyMetadata:
    if header is None:
        raise CheckpointError(
            f"{path} is a safetensors file, but no policy of this library: it has no {HEADER} header."
        )
    try:
        data = json.loads(header)
        if data["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {data['format']}; this version reads format {FORMAT}.")
        return PolicyMetadata(
            policy=data["policy"],
            config=data["config"],
            embodiment=Embodiment.from_dict(data["embodiment"]),
            auxiliary_names=tuple(data["auxiliary_names"]),
            extra=data["extra"],
        )
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} has a damaged {HEADER} header: {error}.") from error


def _check_config(path: Path, metadata: PolicyMetadata, policy: str, config: Mapping[str, Any]) -> None:
    if metadata.policy != policy:
        raise CheckpointError(f"{path} holds policy {metadata.policy!r}, not {policy!r}: set policy={metadata.policy}.")
    plain = json.loads(json.dumps(dict(config)))
    for key, stored in metadata.config.items():
        if key not in plain:
            raise CheckpointError(f"{path} was made with policy.{key}={stored}, which this version does not know.")
        if plain[key] != stored:
            message = f"{path} was made with policy.{key}={stored}, not {plain[key]}: set policy.{key}={stored}."
            raise CheckpointError(message)


def _load(path: Path, module: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Copy tensors into a module of exactly the same names and shapes, or name what differs and touch nothing."""
    own = module.state_dict()
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
    module.load_state_dict(tensors)
