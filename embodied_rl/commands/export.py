"""`embodied-rl export`: write a policy as a checkpoint of lerobot, openpi, Isaac-GR00T or OpenVLA, or its adapters."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow_kind import read_denoise_steps
from embodied_rl.actors.learning.checkpoint import explain_failed_writes
from embodied_rl.assembly import build
from embodied_rl.assembly.evaluated_policies import find_run
from embodied_rl.checkpoints import (
    detection,
    gr00t_files,
    lerobot,
    lerobot_files,
    model_card,
    openpi,
    openvla,
    peft_files,
)
from embodied_rl.checkpoints.foreign import SINGLE, write_prefix_length
from embodied_rl.checkpoints.policy_format import PolicyMetadata, read_metadata
from embodied_rl.checkpoints.weight_names import CheckpointSource, explain_damage, make_header, name_tensors
from embodied_rl.config import assets, hub, plugins
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl.reports.comparison import REPORT
from embodied_rl.reports.report import Report
from embodied_rl.schema import ExportConfig
from embodied_rl.system.atomic_write import explain_errors, set_usual_mode, write_text
from embodied_rl.system.untrusted_files import make_printable, name_file

FULL_PRECISION = {"dtype": "float32", "precision": "float32", "load_vlm_weights": False}
"""Configuration with which lerobot and openpi do not round weights to bfloat16 when they load them."""

DENOISE_STEPS = 10
"""Default of both projects, for policy files without a number."""


def run(config: ExportConfig) -> None:
    """Export a policy file to a checkpoint folder; adapters are merged into the weights unless format=peft.

    Raises:
        UserError: the checkpoint does not exist, the format does not support the policy, or `out` is not empty.
    """
    file, out = check_export(config)
    place = None if config.to is None else hub.prepare_upload(config.to)
    metadata = read_metadata(file)
    network, robot = build.load_backbone(file, merged=config.format != "peft")
    steps = read_denoise_steps(metadata.extra, DENOISE_STEPS)
    with explain_damage(file):
        if config.dtype == "float32" and network.source is not None:
            store_source_as_float32(network.source)
        if config.format == "peft":
            assert config.base is not None, "check_export"
            write_adapter(out, network, robot, policy=metadata.policy, base=config.base, steps=steps)
        else:
            write_checkpoint(out, network, robot, policy=metadata.policy, form=config.format, steps=steps)
    print(f"{config.format} checkpoint of {metadata.policy} in {out}")
    kept = "same" if metadata.policy != "gr00t" or network.source is None else gr00t_files.read_gripper(network.source)
    for note in list_omitted_properties(robot, config.format, network.prefix_trained_to, network.spec.horizon, kept):
        print(make_printable(f"Not stored, because the format cannot store it: {note}"))
    for note in (*lerobot_files.describe_versions(out), *openvla.describe_parts(out)):
        print(note)
    if place is not None:
        card = model_card.make_card(place, config.format, metadata, find_report(file), config.base)
        write_text(out / model_card.NAME, card, "out")
        print(f"Uploaded: {hub.upload(out, place, f'Export {metadata.policy} as {config.format}')}")


def find_report(file: Path) -> Report | None:
    """Return the report of a run on its policy file; None for a checkpoint before its end, and without a run."""
    run = find_run(file)
    if run is None or file.resolve().parent != run.path.resolve() or not (run.path / REPORT).is_file():
        return None
    return Report.read(run.path / REPORT)


def store_source_as_float32(source: CheckpointSource) -> None:
    """Set the dtypes of a source's tensors, and those in its configuration, to float32."""
    source.dtypes = dict.fromkeys(source.dtypes, torch.float32)
    config = json.loads(source.files.get(lerobot.CONFIG, b"{}"))
    changed = {key: value for key, value in FULL_PRECISION.items() if config.get(key, value) != value}
    if changed:
        source.files[lerobot.CONFIG] = json.dumps(config | changed, indent=4).encode()


def list_omitted_properties(
    robot: Embodiment, form: str, trained_to: int = 0, horizon: int = 1, kept_gripper: str = "same"
) -> Iterator[str]:
    """Yield notes on properties of the policy that the format `form` cannot store.

    `kept_gripper`: the convention of gripper actions that the kept files of an imported checkpoint hold.
    """
    if form == "openvla" and horizon > 1:
        yield f"chunks of {horizon} actions (a constant of OpenVLA-OFT's prismatic/vla/constants.py)"
    if form == "openpi" and any(source >= 0 for source in robot.relative):
        names = [name for name, source in zip(robot.action_names, robot.relative, strict=True) if source >= 0]
        yield f"actions relative to the state: {', '.join(names)} (openpi stores that in its training configuration)"
    if robot.gripper != kept_gripper:
        other = "" if kept_gripper == "same" else f"; the imported files, which are kept, have {kept_gripper}"
        yield f"gripper actions of the convention policy.gripper={robot.gripper}{other}"
    if trained_to:
        yield f"prefix_trained_to={trained_to} (the weights' header keeps it, but only embodied-rl import reads that)"


def check_start(config: ExportConfig) -> list[tuple[str, str]]:
    """Check that an export is possible; return what it reads and writes, as rows of text."""
    file, out = check_export(config)
    return [("checkpoint", str(file)), ("out", str(out))]


def check_export(config: ExportConfig) -> tuple[Path, Path]:
    """Check that an export is possible; return the policy file and the output folder."""
    if config.to is not None:
        hub.check_upload(config.to)
    given = assets.resolve_path(config.checkpoint)
    if (form := detection.detect_format(given)) is not None:
        raise UserError(
            f"checkpoint={given} is a folder of {form}; only a policy file of embodied-rl, which describes its robot, "
            f"can be exported. Make one with: embodied-rl import policy.checkpoint={given} sim=<simulator>",
            code="checkpoint-not-imported",
        )
    file, out = build.resolve_policy_file(config.checkpoint), Path(config.out or f"{config.format}_checkpoint")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out={out} is there already and not empty; give another folder.", code="output-exists")
    metadata = read_metadata(file)
    with name_file(file):
        read_denoise_steps(metadata.extra, DENOISE_STEPS)
        cls = plugins.find_plugin("policies", metadata.policy)
    if metadata.start_noise is not None:
        raise UserError(
            f"{file} has a policy over start noise, which {config.format} cannot store. Its network is that of the "
            "checkpoint it was trained from: export that one.",
            code="start-noise-not-exported",
        )
    formats = cls.EXPORTS_TO if issubclass(cls, ForeignCheckpoint) else ()
    if config.format not in formats:
        remedy = f" Give format={formats[0]}." if formats else ""
        raise UserError(
            f"{file} holds policy {metadata.policy!r}, which {config.format} does not support.{remedy}",
            code="format-does-not-support-policy",
        )
    if condition := metadata.embodiment.condition:
        raise UserError(
            f"{file} acts under the condition {condition!r}, with guidance={metadata.embodiment.guidance:g}, which a "
            f"checkpoint of {config.format} cannot store.",
            code="format-does-not-support-condition",
        )
    made = None if metadata.source is None else metadata.source.format
    if cls.EXPORTS_TO_SOURCE and config.format != made:
        raise UserError(
            f"{file} was made from {'new weights' if made is None else f'a checkpoint of {made}'}; policy "
            f"{metadata.policy!r} is exported only to the format that it came from, not to {config.format}.",
            code="format-does-not-support-policy",
        )
    _check_base(config, file, metadata)
    return file, out


def _check_base(config: ExportConfig, file: Path, metadata: PolicyMetadata) -> None:
    """Check that `base` is given if and only if adapters are exported, and that the file has adapters."""
    if config.format != "peft":
        if config.base is not None:
            raise UserError(
                f"base={config.base} is for format=peft: a checkpoint of {config.format} needs no base.",
                code="key-unused",
            )
        return
    if metadata.adapters is None:
        raise UserError(
            f"{file} has no adapters, which policy.train=lora makes: give format=lerobot.",
            code="checkpoint-without-adapters",
        )
    if config.base is None:
        raise UserError(
            "base is missing: format=peft needs base=<folder or hub name of lerobot's> of the checkpoint that the "
            "adapters were trained on. Convert another format with `import`, then `export format=lerobot`.",
            code="key-missing",
        )
    peft_files.check_base_name(config.base, metadata.policy)


def write_checkpoint(
    out: Path, network: FlowBackbone, robot: Embodiment, *, policy: str, form: str, steps: int
) -> None:
    """Write a network and its embodiment as a checkpoint folder of the format `form`."""
    tensors = name_tensors(network, form)
    header = make_header(network, tensors, form)
    for name, part in openvla.separate_parts(tensors).items() if form == "openvla" else ():
        _write(out, {}, part, {"format": "pt"}, name)
    _write(out, _make_files(network, robot, policy, form, steps), tensors, header, SINGLE)


def write_adapter(out: Path, network: FlowBackbone, robot: Embodiment, *, policy: str, base: str, steps: int) -> None:
    """Write a network's adapters, with lerobot's small files, for the checkpoint `base`.

    Raises:
        UserError: `base` is a folder, and its weights differ from those that were adapted.
    """
    if Path(base).is_dir():
        peft_files.check_base_weights(network, Path(base))
    else:
        print(f"Not checked, because base={base} is not on this disk: whether the adapters were trained on it.")
    contents = peft_files.make_files(network, base, _make_files(network, robot, policy, "lerobot", steps))
    header = write_prefix_length({"format": "pt"}, network.prefix_trained_to)
    _write(out, contents, peft_files.make_tensors(network), header, peft_files.WEIGHTS)


def _write(
    out: Path, contents: Mapping[str, bytes], tensors: dict[str, Tensor], header: dict[str, str], name: str
) -> None:
    """Write small files and tensors into a folder, the tensors last: a folder that has them is complete."""
    with explain_errors(out, "out"):
        out.mkdir(parents=True, exist_ok=True)
        partial = out / f".tmp-{name}-{os.getpid()}"
        with explain_failed_writes(partial):
            save_file(tensors, partial, header)
        for file, content in contents.items():
            lerobot_files.make_parent(file, out).write_bytes(content)
        set_usual_mode(partial)
        partial.replace(out / name)


def _make_files(network: FlowBackbone, robot: Embodiment, policy: str, form: str, steps: int) -> dict[str, bytes]:
    source = network.source
    if source is not None and policy == "gr00t":
        return gr00t_files.keep_files(source, robot, steps, network.config.embodiment)
    if form == "openvla":
        if source is None or source.format != form:
            return openvla.make_files(network, robot)
        return openvla.keep_files(network, source, robot)
    if source is None or source.format != form:
        files = lerobot_files if form == "lerobot" else openpi
        return files.make_files(network, robot, policy, steps)
    if form == "lerobot":
        return lerobot_files.keep_files(network, source, robot, policy, steps)
    return openpi.keep_files(source, robot, policy)
