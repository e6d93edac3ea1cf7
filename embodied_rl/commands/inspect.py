"""`embodied-rl inspect`: print the content of a checkpoint, and what is missing to train it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from embodied_rl.actors.embodiment import Normalisation
from embodied_rl.assembly import build, networks
from embodied_rl.checkpoints import detection, weight_names
from embodied_rl.checkpoints.foreign import FoundCheckpoint, read_prefix_length
from embodied_rl.checkpoints.lerobot_processors import WORDLESS
from embodied_rl.checkpoints.policy_format import PolicyMetadata, read_metadata, verify_weights
from embodied_rl.config import assets, plugins
from embodied_rl.config.freeze import thaw_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import InspectConfig
from embodied_rl.system.untrusted_files import make_printable

Row = tuple[str, str]
LONG = 200


def run(config: InspectConfig) -> None:
    """Print the content of the checkpoint, and what is missing to train it.

    Raises:
        CheckpointError: the checkpoint does not exist, or is damaged.
    """
    path = assets.resolve_path(config.checkpoint)
    if detection.detect_format(path) is None:
        file = build.resolve_policy_file(config.checkpoint)
        if config.embodiment is not None:
            message = f"embodiment={config.embodiment}: a policy file is for one robot. Leave it out."
            raise UserError(message, code="key-unused")
        print_rows(describe_policy_file(read_metadata(file)))
        if config.tensors:
            verify_weights(file)
    else:
        found = detection.read_checkpoint(path, config.embodiment)
        print_rows(describe_checkpoint(found))
        for problem in list_missing(found, config.tensors):
            print(f"missing: {make_printable(problem)}")
    if not config.tensors:
        print("The tensors were not checked; tensors=true does that, and takes longer.")


def check_start(config: InspectConfig) -> list[Row]:
    """Check that the path is a checkpoint; return where it is and whose, as rows of text."""
    path = assets.resolve_path(config.checkpoint)
    if (form := detection.detect_format(path)) is not None:
        return [("checkpoint", f"{path} of {form}")]
    file = build.resolve_policy_file(config.checkpoint)
    read_metadata(file)
    return [("checkpoint", str(file))]


def describe_policy_file(metadata: PolicyMetadata) -> Iterator[Row]:
    """Yield the rows that describe a policy file of this library."""
    robot = metadata.embodiment
    yield "format", "embodied-rl" + (f", made from {metadata.source.format}'s" if metadata.source else "")
    yield "policy", metadata.policy + (f", adapters of rank {metadata.adapters.rank}" if metadata.adapters else "")
    yield "sizes", format_sizes(metadata.config)
    views = zip(robot.cameras, robot.view_names, strict=True)
    yield "cameras", ", ".join(f"{camera} as {view}" if camera != view else camera for camera, view in views) or "none"
    for name, names, known in (
        ("state", robot.state_names, robot.state),
        ("action", robot.action_names, robot.action),
    ):
        yield name, f"{len(names)} entries, {describe_statistics(known)}: {', '.join(names)}"
    pairs = zip(robot.action_names, robot.relative, strict=False)
    yield "relative actions", ", ".join(name for name, source in pairs if source >= 0) or "none"
    yield "executed", str(robot.executed)
    yield "prefix_trained_to", str(metadata.prefix_trained_to)
    if metadata.start_noise is not None:
        yield "start noise", f"a policy learns it: {format_sizes(thaw_config(metadata.start_noise))}"
    yield "prompt", f"at most {robot.token_length} tokens, " + ("tokenizer inside" if robot.tokenizer else "by words")
    yield "condition", f"{robot.condition}, guidance {robot.guidance:g}" if robot.condition else ""
    yield "trained with", ", ".join(f"{key}: {value}" for key, value in metadata.extra.items())


def describe_checkpoint(found: FoundCheckpoint) -> Iterator[Row]:
    """Yield the rows that describe a checkpoint of another project."""
    yield "format", found.format
    yield "policy", found.policy or " or ".join(found.candidates) or "not stored"
    try:
        cls = _find_class(found)
        yield "sizes", format_sizes(thaw_config(networks.find_network_sizes(found, cls, {})))
    except ValueError:  # `list_missing` reports the error
        yield "sizes", ""
    counted = Counter(str(entry.dtype).removeprefix("torch.") for entry in found.tensors.values())
    types = ", ".join(f"{number} {name}" for name, number in counted.items())
    yield "tensors", f"{len(found.tensors)}, {found.tensors.nbytes / 1e9:.3f} GB: {types}"
    yield "cameras", ", ".join(found.cameras) or "none"
    for name in ("state", "action"):
        known: Normalisation | None = getattr(found.statistics, name)
        absent = "not stored" if name == "action" or found.reads_state else "not read"
        yield name, absent if known is None else f"{len(known)} entries, {describe_statistics(known)}"
    yield "relative actions", f"but for {', '.join(found.exceptions)}" if found.relative else "none"
    yield "executed", str(found.executed or "not stored")
    yield "prefix_trained_to", str(read_prefix_length(found.tensors.metadata, str(found.folder)))
    yield "denoise steps", str(found.denoise_steps or "not stored")
    without = "none: it reads no words" if found.policy in WORDLESS else "not inside"
    yield "tokenizer", "inside" if found.tokenizer else without


def _find_class(found: FoundCheckpoint) -> type[Any]:
    """Return the class of a checkpoint's network, the first one if its files leave several open."""
    return plugins.find_plugin("policies", found.policy or (*found.candidates, "None")[0])


def list_missing(found: FoundCheckpoint, tensors: bool) -> Iterator[str]:
    """Yield the obstacles to training the checkpoint, each with the key or file that removes it.

    Args:
        found: the checkpoint.
        tensors: whether to build the network, and compare all its tensors with those of the checkpoint.
    """
    if found.statistics.problem:
        yield found.statistics.problem
    for name in ("state", "action"):
        needed = name == "action" or found.reads_state
        if needed and getattr(found.statistics, name) is None and not found.statistics.problem:
            yield f"statistics of the {name}; policy.statistics=<LeRobotDataset folder, or norm_stats.json>"
    if not found.tokenizer and found.policy not in WORDLESS:
        yield "the tokenizer; policy.tokenizer=<tokenizer.json, or its folder>"
    try:
        cls = _find_class(found)
        options = networks.find_network_sizes(found, cls, {})
        if not tensors:
            return
        dimensions = {"action_dim": options.action_dim or 1, "state_dim": options.state_dim or 1}
        network = weight_names.build_empty(
            lambda: cls(options, **dimensions, cameras=found.cameras or ("any",), vocabulary_size=1,
                        image_size=getattr(options, "image_size", None) or (64, 64),
                        token_length=getattr(options, "token_length", 1))
        )  # fmt: skip
        weight_names.fit_checkpoint(cls, found, network)
    except ValueError as error:
        yield str(error)


def print_rows(rows: Iterator[Row]) -> None:
    """Print rows in two columns, without those that have no value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in rows:
        if value:
            table.add_row(name, escape(make_printable(value)))
    Console().print(table)


def format_sizes(config: Mapping[str, Any]) -> str:
    """Format keys and values on one line; long text is left out."""
    return ", ".join(f"{key} {_shorten(value)}" for key, value in config.items())


def _shorten(value: Any) -> Any:
    return f"({len(value)} characters)" if isinstance(value, str) and len(value) > LONG else value


def describe_statistics(known: Normalisation) -> str:
    """Describe a normalisation: its kind and the ranges of its centres and scales."""
    if known.kind == "identity" or not len(known):
        return "not normalised"
    low, high = min(known.center), max(known.center)
    return f"{known.kind} (centres {low:.3g} … {high:.3g}, scales {min(known.scale):.3g} … {max(known.scale):.3g})"
