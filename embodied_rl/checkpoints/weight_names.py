"""Translation of tensor names between this library ("our") and other projects ("their"), for import and export.

A network's class defines the name translation (`ForeignCheckpoint.CHECKPOINT_NAMES`), second names of the same weight
(`CHECKPOINT_COPIES`), and tensors that its forward pass never reads (`CHECKPOINT_UNREAD`; carried for export only).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from embodied_rl.actors.embodiment import Normalisation
from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error, separate_tensors, unsupported_error
from embodied_rl.checkpoints.foreign import FoundCheckpoint, write_prefix_length
from embodied_rl.interfaces.backbone import Backbone, FlowBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.system.untrusted_files import check_name, shorten

PREFIX = ForeignCheckpoint.CHECKPOINT_OUTERMOST
BEFORE_PROCESSORS = ("normalize_inputs.", "normalize_targets.", "unnormalize_outputs.")
SHOWN = 6


@dataclass
class CheckpointSource:
    """The checkpoint that a network was imported from; kept with the network and in its policy files, for export.

    Attributes:
        format: the checkpoint's format.
        names: their name → our name; a second copy has the same; empty for carried tensors.
        dtypes: their name → stored dtype.
        carried: their name → tensor, for tensors that the network does not have.
        files: small files, name → content.
        header: the metadata in the header of the weights' file.
        state, action: the statistics in these files; where: name of the file that holds them, or empty.
    """

    format: str
    names: dict[str, str]
    dtypes: dict[str, torch.dtype]
    carried: dict[str, Tensor] = field(default_factory=dict, repr=False)
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    header: dict[str, str] = field(default_factory=dict)
    state: Normalisation | None = None
    action: Normalisation | None = None
    where: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the carried tensors and the small files, as plain JSON values."""
        return {
            "format": self.format,
            "names": self.names,
            "dtypes": {name: str(dtype).removeprefix("torch.") for name, dtype in self.dtypes.items()},
            "header": self.header,
            "state": None if self.state is None else asdict(self.state),
            "action": None if self.action is None else asdict(self.action),
            "where": self.where,
        }

    def holds(self, state: Normalisation, action: Normalisation) -> bool:
        """Return whether the files hold these statistics, padded or not."""
        pairs = (self.state, state), (self.action, action)
        return all(mine is not None and mine.unpadded(len(today)) == today for mine, today in pairs)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "CheckpointSource":
        """Restore a source from untrusted values of `to_dict`.

        Raises:
            KeyError, TypeError, AttributeError: an entry is missing, or of another type.
            UserError: a dtype is unknown, or `where` leads out of a folder.
        """
        where, dtypes = str(data["where"]), _texts(data["dtypes"])
        for name in dtypes.values():
            if not isinstance(getattr(torch, name, None), torch.dtype):
                raise damaged_error(f"source.dtypes: {name!r:.80} is not a dtype.")
        if where:
            check_name(where, "source.where", CheckpointError)
        return CheckpointSource(
            format=str(data["format"]),
            names=_texts(data["names"]),
            dtypes={name: getattr(torch, dtype) for name, dtype in dtypes.items()},
            header=_texts(data["header"]),
            state=_statistics(data["state"]),
            action=_statistics(data["action"]),
            where=where,
        )


def _texts(data: Mapping[str, Any]) -> dict[str, str]:
    if not all(isinstance(text, str) for text in data.values()):
        raise TypeError("texts are expected")
    return dict(data)


def _statistics(data: Mapping[str, Any] | None) -> Normalisation | None:
    return None if data is None else Normalisation(data["kind"], tuple(data["center"]), tuple(data["scale"]))


def build_empty(build: Callable[[], FlowBackbone], allowed: bool = True) -> FlowBackbone:
    """Build a network without its weights, on the meta device if the network supports it.

    `allowed=False`: the network is known not to support it. The meta device is then not used, because its first use
    imports PyTorch's compiler and takes seconds.
    """
    if not allowed:
        return build()
    with torch.device("meta"):
        network = build()
    return network if network.CAN_BE_EMPTY else build()


@contextmanager
def explain_damage(path: Path) -> Iterator[None]:
    """Say that a checkpoint of another project is damaged where reading it fails in the `with` block.

    Its files may hold anything: lists in place of groups, shapes of other dimensions, numbers of hundreds of digits.

    Raises:
        CheckpointError: reading fails, and not by a `UserError`, which says more.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, SafetensorError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        message = f"{path} is damaged, or its settings and tensors do not fit each other"
        raise damaged_error(f"{message}: {type(error).__name__}: {shorten(error)}.") from error


@contextmanager
def explain_sizes(path: Path) -> Iterator[None]:
    """Add the name of a policy file to errors of sizes that PyTorch cannot build, or that do not fit into memory.

    Raises:
        CheckpointError: PyTorch cannot build the network in the `with` block.
    """
    try:
        yield
    except (ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, UserError | Unavailable):
            raise
        raise damaged_error(f"{path} holds sizes of which no network can be built: {shorten(error)}.") from error


def as_foreign(network: Backbone) -> ForeignCheckpoint:
    """Return the network, typed as `ForeignCheckpoint`; assert that it is one."""
    assert isinstance(network, ForeignCheckpoint), "only such networks are attached to other projects' checkpoints"
    return network


def strip_outermost(name: str, outermost: str = PREFIX) -> str:
    """Return their name without the outermost module, which only some versions write."""
    return name.removeprefix(outermost)


def to_our_name(cls: type[ForeignCheckpoint], name: str) -> str:
    """Return our name for a tensor from their name."""
    plain = strip_outermost(name, cls.CHECKPOINT_OUTERMOST)
    plain = cls.CHECKPOINT_COPIES.get(plain, plain)
    for mine, theirs in cls.CHECKPOINT_NAMES.items():
        for start in theirs:
            if plain.startswith(start):
                return mine + plain.removeprefix(start)
    return plain


def to_their_name(cls: type[ForeignCheckpoint], name: str) -> str:
    """Return their name for a tensor from our name, as new versions write it, without the outermost module."""
    for mine, starts in cls.CHECKPOINT_NAMES.items():
        if name.startswith(mine):
            return starts[0] + name.removeprefix(mine)
    return name


def list_shapes(cls: type[ForeignCheckpoint], found: FoundCheckpoint) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's tensors, by our names."""
    return {to_our_name(cls, name): entry.shape for name, entry in found.tensors.items()}


def fit_checkpoint(cls: type[ForeignCheckpoint], found: FoundCheckpoint, network: FlowBackbone) -> CheckpointSource:
    """Match a checkpoint's tensors with a network's, and return the result as a `CheckpointSource`.

    Raises:
        CheckpointError: see `match_tensors`.
    """
    names, carried = match_tensors(cls, found, network)
    return CheckpointSource(
        format=found.format,
        names={name: "" if name in carried else mine for name, mine in names.items()},
        dtypes={name: entry.dtype for name, entry in found.tensors.items()},
        carried={name: found.tensors.load(name) for name in carried},
        files=dict(found.files),
        header=dict(found.tensors.metadata),
        state=found.statistics.state,
        action=found.statistics.action,
        where=next((name for name in found.files if str(found.folder / name) == found.statistics.where), ""),
    )


def match_tensors(
    cls: type[ForeignCheckpoint], found: FoundCheckpoint, network: FlowBackbone
) -> tuple[dict[str, str], list[str]]:
    """Match a checkpoint's tensors with a network's, by name and shape; no tensor is read.

    Returns:
        Their name → our name, and those of their names that the network does not have, but an export needs.

    Raises:
        CheckpointError: tensors are missing, unknown, of another shape or not floating-point numbers.
    """
    own = network.state_dict()
    names = {name: to_our_name(cls, name) for name in found.tensors}
    unread, listed = re.compile("|".join(cls.CHECKPOINT_UNREAD) or r"(?!)"), as_foreign(network).unread_shapes()
    plain = {name: strip_outermost(name, cls.CHECKPOINT_OUTERMOST) for name in names}
    carried = [
        name for name, mine in names.items() if mine not in own and (plain[name] in listed or unread.match(plain[name]))
    ]
    extra = [name for name, mine in names.items() if mine not in own and name not in carried]
    missing = [to_their_name(cls, mine) for mine in own if mine not in names.values()]
    _check_complete(found, missing, extra)
    for name, mine in names.items():
        if mine in own and tuple(own[mine].shape) != found.tensors[name].shape:
            raise CheckpointError(
                f"{found.folder}: {name} is {found.tensors[name].shape}, expected {tuple(own[mine].shape)}.",
                code="checkpoint-of-another-network",
            )
        if mine in own and not (dtype := found.tensors[name].dtype).is_floating_point:
            kind = str(dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{found.tensors[name].file}: {name} is {kind}; weights are floating-point numbers.",
                code="checkpoint-of-another-network",
            )
    return names, carried


def load_weights(
    found: FoundCheckpoint, fitted: CheckpointSource, network: FlowBackbone, dtype: torch.dtype = torch.float32
) -> None:
    """Load a checkpoint's weights into a network, which may be on the meta device.

    If a second copy of a weight differs from the first, it is carried. lerobot's output layer after fine-tuning is one.

    Raises:
        CheckpointError: a file is damaged, or a weight is not finite.
    """
    state: dict[str, Tensor] = {}
    cls = type(as_foreign(network))
    firsts = sorted(fitted.names, key=lambda name: strip_outermost(name) in cls.CHECKPOINT_COPIES)
    for name in (name for name in firsts if fitted.names[name]):
        stored, mine = found.tensors.load(name), fitted.names[name]
        if not stored.isfinite().all():
            raise CheckpointError(
                f"{found.tensors[name].file}: {name} has values that are NaN or infinite.", code="checkpoint-not-finite"
            )
        if mine in state and not torch.equal(state[mine], stored.to(dtype)):
            fitted.names[name], fitted.carried[name] = "", stored
        else:
            state[mine] = stored.to(dtype)
    network.load_state_dict(state, assign=True)
    network.restore_buffers()
    assert not any(buffer.is_meta for buffer in network.buffers()), "restore_buffers left a buffer on the meta device"


def _check_complete(found: FoundCheckpoint, missing: list[str], extra: list[str]) -> None:
    """Raise an error that lists missing and unknown tensors with the nearest names."""
    if not missing and not extra:
        return
    known = list(found.tensors)
    if any(name.startswith(BEFORE_PROCESSORS) for name in extra):
        raise unsupported_error(
            f"{found.folder} holds its statistics among its weights, as lerobot stored them before version 0.4: "
            "migrate it there with lerobot.processor.migrate_policy_normalization."
        )
    lines = [f"{found.folder} is not a checkpoint of this network."]
    lines += [f"  missing: {name}{_nearest(name, extra or known)}" for name in missing[:SHOWN]]
    lines += [f"  … and {len(missing) - SHOWN} more are missing" for _ in range(len(missing) > SHOWN)]
    lines += [f"  unknown: {name}{_nearest(name, missing)}" for name in extra[:SHOWN]]
    lines += [f"  … and {len(extra) - SHOWN} more are unknown" for _ in range(len(extra) > SHOWN)]
    raise CheckpointError("\n".join(lines), code="checkpoint-of-another-network")


def _nearest(name: str, among: Iterable[str]) -> str:
    close = get_close_matches(name, list(among), n=1, cutoff=0.7)
    return f"   (nearest: {close[0]})" if close else ""


def find_sizes(cls: type[Any], found: FoundCheckpoint, given: Mapping[str, object]) -> dict[str, object]:
    """Return the network's configuration: values from the checkpoint, and given values for all other keys.

    Raises:
        CheckpointError: a given key contradicts the checkpoint, or a required key is in neither.
        UserError: the network does not read checkpoints of other projects.
    """
    if not issubclass(cls, ForeignCheckpoint):
        raise UserError(f"{cls.__name__} reads checkpoints of this library only.", code="checkpoint-unsupported")
    read = cls.checkpoint_sizes(list_shapes(cls, found), found.config, given)
    for key, value in given.items():
        if key in read and read[key] != value:
            raise CheckpointError(
                f"{found.folder} has policy.{key}={read[key]}, not {value}: leave policy.{key} out, it is read from "
                "the checkpoint.",
                code="key-contradicts-checkpoint",
            )
    return {**read, **given}


def name_tensors(network: FlowBackbone, form: str) -> dict[str, Tensor]:
    """Return all tensors of a checkpoint in the format `form`, such as "lerobot", by their names in that format.

    A network that was imported from this format keeps the original names and dtypes, and the carried tensors. Any other
    network gets new names, and zeros for the tensors that loaders require although no forward pass reads them.
    """
    source: CheckpointSource | None = network.source
    state = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    if source is not None and source.format == form:
        found = {name: state[mine] if mine else source.carried[name] for name, mine in source.names.items()}
        return separate_tensors({name: value.to(source.dtypes[name]) for name, value in found.items()})
    cls = type(as_foreign(network))
    renamed = {to_their_name(cls, name): value for name, value in state.items()}
    renamed |= {copy: renamed[first] for copy, first in cls.CHECKPOINT_COPIES.items() if first in renamed}
    carried = {} if source is None else {strip_outermost(name): value for name, value in source.carried.items()}
    for name, shape in as_foreign(network).unread_shapes().items():
        renamed[name] = carried.get(name, torch.zeros(shape))
    dtypes = {} if source is None else {strip_outermost(name): dtype for name, dtype in source.dtypes.items()}
    plain = {name: value.to(dtypes.get(name, value.dtype)) for name, value in renamed.items()}
    if form == "openpi":  # safetensors keeps the first name of a weight that has two
        firsts = as_foreign(network).CHECKPOINT_COPIES.values()
        return separate_tensors({name: value for name, value in plain.items() if name not in firsts})
    start = cls.CHECKPOINT_OUTERMOST if form == "lerobot" else ""
    return separate_tensors({start + name: value for name, value in plain.items()})


def make_header(network: FlowBackbone, tensors: Mapping[str, Tensor], form: str) -> dict[str, str]:
    """Return the safetensors header: the original one, or a new one with the second names of weights stored once.

    Both hold the number of committed actions that the network is trained to continue.
    """
    source: CheckpointSource | None = network.source
    if source is not None and source.format == form and source.header:
        return write_prefix_length(source.header, network.prefix_trained_to)
    copies = as_foreign(network).CHECKPOINT_COPIES.items()
    shared = {first: copy for copy, first in copies if copy in tensors and first not in tensors}
    return write_prefix_length({"format": "pt"} | shared, network.prefix_trained_to)
