"""Policies of an evaluation: their files, their runs, and the simulators that they were trained in."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied_rl.assembly.policy_factory import find_policy_file, names_file
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.config import assets, hub, plugins
from embodied_rl.config.freeze import freeze_config
from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.rollout.delay import Chunks
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import EvalConfig, SimChange, SimNode, config_file
from embodied_rl.schema.untrusted_settings import check_file
from embodied_rl.system.untrusted_files import check_inside

_REPORTED = ("embodied_rl", "policy", "sha256", "version", "normalisation", "control_hz", "executed")


def find_policy(config: EvalConfig) -> tuple[str, Path | None]:
    """Return the policy's name or checkpoint and its file; the file is None for words and servers.

    Raises:
        UserError: the checkpoint does not exist.
    """
    who = config.policy or config.checkpoint
    assert who is not None, "validation asks for it"
    return who, find_policy_file(who) if names_file(who) else None


def find_policies(config: EvalConfig) -> dict[str, Path | None]:
    """Return the policies of an evaluation and their files; see `find_policy`."""
    if not config.policies:
        return dict([find_policy(config)])
    return {who: find_policy_file(who) if names_file(who) else None for who in config.policies.values()}


def place_policies(config: EvalConfig) -> EvalConfig:
    """Return the configuration with absolute paths of the policies' files."""

    def place(text: str) -> str:
        is_path = names_file(text) and not text.startswith((assets.PREFIX, hub.PREFIX))
        return str(find_policy_file(text).resolve()) if is_path else text

    if config.policies:
        return replace(config, policies={task: place(text) for task, text in config.policies.items()})
    return replace(config, policy=place(find_policy(config)[0]), checkpoint=None)


def find_run(file: Path) -> RunFolder | None:
    """Return the run of <run>/policy.safetensors or <run>/checkpoints/<step>/policy.safetensors; None for others."""
    parents = file.resolve().parents
    folders = [RunFolder(parents[level]) for level in (0, 2) if level < len(parents)]
    return next((folder for folder in folders if folder.config.is_file()), None)


def find_simulator(file: Path, folder: RunFolder | None, change: SimChange) -> SimNode | None:
    """Return the simulator that a policy was trained in, from its run's configuration or else the file's metadata.

    None if the source names none, or if the user chose another one.

    Raises:
        UserError: the source is damaged, or names code to run that the user did not type.
    """
    stored = read_simulator(file, folder)
    if stored is None or change.name not in (None, stored.get("name")):
        return None
    where = file if folder is None else folder.config
    typed = [f"sim.{key}" for key in change.options]
    check_file(SimNode, stored, where, folder=where.parent, typed=typed, where="sim")
    try:
        node = freeze_config(SimNode, stored, "sim")
        plugins.configure_plugin("sims", node, "sim")
    except UserError as error:
        raise UserError(f"{where}: {error}", code=error.code) from None
    return node


def read_simulator(file: Path, folder: RunFolder | None) -> dict[str, Any] | None:
    """Return the keys of `sim` in a run's configuration or a policy file; None if there are none."""
    if folder is None:
        sim = read_metadata(file).extra.get("sim")
    else:
        check_inside(folder.path, folder.config)
        sim = config_file.read_config(folder.config).get("sim")
    if isinstance(sim, str):
        return {"name": sim}
    if sim is None:
        return None
    if not isinstance(sim, Mapping):
        source = file if folder is None else folder.config
        raise UserError(f"{source}: sim is not a group of keys.", code="config-damaged")
    return {str(key): value for key, value in sim.items()}


def name_simulators(config: EvalConfig) -> list[str]:
    """Return the names of an evaluation's simulators without opening them."""
    if config.benchmark is not None:
        return [str(part.sim.get("name")) for part in config.benchmark.parts]
    if config.sim.name is not None:
        return [config.sim.name]
    _, file = find_policy(config)
    stored = None if file is None else read_simulator(file, find_run(file))
    return [] if stored is None else [str(stored.get("name"))]


def read_stored_chunks(file: Path) -> Chunks:
    """Return the chunk sizes in a policy file, without loading weights."""
    metadata = read_metadata(file)
    return Chunks(int(metadata.config["horizon"]), metadata.embodiment.executed, metadata.prefix_trained_to)


def check_server(client: PolicyClient, specs: Sequence[SimulatorSpec]) -> None:
    """Check that a served policy fits simulators, and print which of its properties are unknown.

    Raises:
        UserError: it does not fit; the message names what.
    """
    for spec in specs:
        try:
            unknown = client.check_body(spec.body, spec.words)
        except UserError as error:
            raise UserError(f"{client.url}: {error}", code=error.code) from None
        if unknown:
            print(f"{client.url} does not describe, so nothing checked: {', '.join(unknown)}.")


def disconnect(client: PolicyClient) -> None:
    """Close the connection; print a warning if the weights changed during the evaluation."""
    client.close()
    if len(client.versions) > 1:
        listed = ", ".join(map(str, sorted(client.versions)))
        print(f"{client.url}: its weights changed during the evaluation (versions {listed}); the result mixes them.")


def describe_server(client: PolicyClient) -> dict[str, Any]:
    """Return a report's entries about a server's policy."""
    metadata = client.metadata
    return {name: metadata[name] for name in _REPORTED if isinstance(metadata.get(name), str | int | float)}
