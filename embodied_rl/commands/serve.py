"""`embodied-rl serve`: a policy behind a websocket, by openpi's protocol."""

import hashlib
import re
from contextlib import ExitStack
from pathlib import Path

from embodied_rl.actors.learning import checkpoint
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.assembly import build
from embodied_rl.assembly.loaded import load_policy
from embodied_rl.assembly.policy_factory import find_policy_file
from embodied_rl.checkpoints.policy_format import read_metadata
from embodied_rl.config import assets
from embodied_rl.deployment.policy_client.request import WireNames
from embodied_rl.interfaces.errors import UserError
from embodied_rl.policy_server.served import PolicyServerSettings, ServedPolicy, ServedWeights, check_settings
from embodied_rl.runs.provenance import count_cores
from embodied_rl.schema import ServeConfig
from embodied_rl.system.untrusted_files import make_printable


def run(config: ServeConfig) -> None:
    """Load the policy, and serve it until a signal.

    Raises:
        UserError: the policy is missing, the address is in use, or the extra `serve` is missing.
    """
    file = check_start(config)
    import torch

    from embodied_rl.policy_server.server import serve_policy
    from embodied_rl.policy_server.weight_follower import WeightFollower

    torch.set_num_threads(config.threads or max(1, count_cores() - 1))
    served = ServedPolicy(load_served_weights(file, config.device))

    def print_address(url: str) -> None:
        spec = served.weights.spec
        print(f"Serving {config.policy} (version {served.weights.version}) at {url}; Ctrl-C ends it.")
        count = spec.horizon if config.send == "horizon" else spec.executed
        takes = f"It takes {', '.join(spec.keys)}; it returns {count} actions of {', '.join(spec.action_names)}."
        print(make_printable(takes))
        print(f"Measure it: embodied-rl eval policy={url} sim=<simulator>", flush=True)

    with ExitStack() as stack:
        if config.follow:
            newest = lambda: find_newest_file(config.policy)  # noqa: E731
            load = lambda path: load_served_weights(path, config.device)  # noqa: E731
            stack.enter_context(WeightFollower(served, file, newest, load, lambda line: print(line, flush=True)))
        serve_policy(served, _make_settings(config), print_address)
    print("The server has ended.")


def check_start(config: ServeConfig) -> Path:
    """Check what would keep the server from starting, without loading weights; return the policy's file."""
    check_settings(_make_settings(config))
    file = find_newest_file(config.policy) if config.follow else find_policy_file(config.policy)
    read_metadata(file)
    return file


def check_serving(config: ServeConfig) -> None:
    """Check for a dry run; see `check_start`."""
    check_start(config)


def load_served_weights(file: Path, device: str = "cpu") -> ServedWeights:
    """Load a policy file for a server. Its version is the iteration of its checkpoint; 0 outside of a run.

    Raises:
        UserError: the file is damaged, or of a policy that is not installed.
    """
    loaded = load_policy(str(file), device=device)
    version = int(file.parent.name) if re.fullmatch(r"\d{8,}", file.parent.name) else 0
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return ServedWeights(loaded.actor, loaded.spec, version, {"policy": loaded.metadata.policy, "sha256": digest})


def find_newest_file(run: str) -> Path:
    """Return the newest policy file of a run. Raises `UserError`: it is not a run folder, or has no checkpoint yet."""
    folder = assets.resolve_path(run) / "checkpoints"
    if not folder.is_dir():
        raise UserError(
            f"follow=true: {run} is not a run folder. Give one below run.root, or leave follow out.", code="run-missing"
        )
    try:
        return checkpoint.resolve_checkpoint(folder / "last") / build.POLICY
    except CheckpointError:
        raise UserError(
            f"follow=true: {run} has no checkpoint yet; checkpoint.every decides when it gets one.",
            code="checkpoint-missing",
        ) from None


def _make_settings(config: ServeConfig) -> PolicyServerSettings:
    return PolicyServerSettings(
        config.host, config.port, config.token_variable, config.batch, config.wait_ms / 1e3, config.clients,
        config.message_mb * 2**20, config.deadline, config.send, config.metadata,
        WireNames(config.keys, config.ignore),
    )  # fmt: skip
