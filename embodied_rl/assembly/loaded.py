"""Loaded policies, as `embodied_rl.load_policy` returns them: observations in, actions out."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.imitation import check_history
from embodied_rl.assembly import build
from embodied_rl.assembly.policy_factory import WORDS, load_deployed
from embodied_rl.checkpoints.policy_format import PolicyMetadata, read_metadata
from embodied_rl.config import hub
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import as_array, read_observation
from embodied_rl.interfaces.policy import Actor, NoiseKeys

HASHED = (
    "state_names", "state", "action_names", "action_low", "action_high", "action", "views", "relative", "gripper",
)  # fmt: skip
"""Entries of an embodiment that convert between the robot's units and the network's."""


class LoadedPolicy:
    """A policy that acts. `embodied_rl.load_policy` makes one.

    Attributes:
        actor: the policy as this library's commands use it.
        metadata: of its file.
    """

    def __init__(self, actor: Actor, metadata: PolicyMetadata, seed: int | None = None) -> None:
        self.actor, self.metadata = actor, metadata
        self._seed, self._calls = seed, 0

    @cached_property
    def spec(self) -> PolicyDescription:
        """Return what the policy expects and returns."""
        body: Embodiment = self.actor.embodiment
        by_words = not body.tokenizer and getattr(self.actor.network, "READS_INSTRUCTIONS", True)
        return PolicyDescription(
            cameras=dict.fromkeys(body.cameras, body.image_size),
            state_names=body.state_names,
            action_names=body.action_names,
            action_low=body.action_low,
            action_high=body.action_high,
            control_hz=find_control_hz(self.metadata),
            horizon=self.actor.network.spec.horizon,
            executed=body.executed,
            words=tuple(word for word in body.vocabulary if word) if by_words else (),
            prompt_length=body.token_length - (0 if body.tokenizer else len(body.condition.split())),
            prefix_trained_to=int(getattr(self.actor, "prefix_trained_to", 0)),
            normalisation=hash_normalisation(body),
        )

    def act(
        self,
        observation: Mapping[str, Any],
        *,
        prefix: Any = None,
        committed: int | NDArray[np.int64] | None = None,
        strategy: str = "prefix",
        whole: bool = False,
    ) -> NDArray[np.float32]:
        """Return the actions to execute next.

        Args:
            observation: `images/<camera>` uint8 [h, w, 3] of each camera (or `images`, a mapping of them), `state` [S]
                or a mapping of its names, `prompt` a text; see `spec`. Or n rows of each, the prompts in a list.
            prefix: [p, A] in the robot's units, the actions planned from now on, such as those that the robot executes
                during inference; [n, p, A] for rows.
            committed: how many of these are executed regardless of the answer, which begins with them; int64 [n] for
                rows. None: all.
            strategy: how the answer continues them: "prefix", by a policy that is trained to, up to
                `spec.prefix_trained_to`; "replacement" or "guided", by any.
            whole: return all actions that are predicted, `spec.horizon`.

        Returns:
            float32 [executed, A] in the robot's units, within its limits; [n, executed, A] for rows.

        Raises:
            UserError: the observation or the prefix does not fit.
        """
        seen, single = read_observation(observation, self.spec)
        given, counts = _read_plan(prefix, committed, single)
        keys, rows = None, len(seen)
        if self._seed is not None:
            keys = NoiseKeys(self._seed, np.arange(rows, dtype=np.int64), np.full(rows, self._calls, np.int64))
            self._calls += 1
        actions = self.actor.infer(seen, keys, given, counts, whole=whole, strategy=strategy)
        return actions[0] if single else actions

    def reset(self) -> None:
        """Restart the noise of a seed, as for a new episode. No effect without a seed."""
        self._calls = 0


def _read_plan(prefix: Any, committed: Any, single: bool) -> tuple[NDArray[np.float32] | None, NDArray[Any] | None]:
    """Return a prefix [n, p, A] and how many of its actions are committed [n]; the actor checks both against itself."""
    if prefix is None:
        if committed is not None:
            raise UserError("committed counts actions of a prefix: give the prefix, too.", code="prefix-missing")
        return None, None
    given, counts = as_array(prefix, "prefix"), None if committed is None else as_array(committed, "committed")
    if given.dtype.kind not in "fiu":
        raise UserError(
            f"prefix is {given.dtype}: it holds actions, numbers in the robot's units.", code="prefix-invalid"
        )
    if counts is not None and counts.dtype.kind not in "iu":
        raise UserError(
            f"committed is {ascii(committed)[:40]}: it must be a whole number, or one for each row.",
            code="committed-invalid",
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinity, which is refused
        given = given.astype(np.float32)
    return (given[None], None if counts is None else counts[None]) if single else (given, counts)


def load_policy(policy: str | os.PathLike[str], *, seed: int | None = None, device: str = "cpu") -> LoadedPolicy:
    """Load a policy to act with; see `embodied_rl.load_policy`."""
    policy = os.fspath(policy)
    if not policy:
        raise UserError("load_policy('') names no policy. Give a run, a file or asset:<name>.", code="path-empty")
    if policy in WORDS or "://" in policy:
        remedy = "embodied_rl.deployment.policy_client.client.PolicyClient asks a server" if "://" in policy else ""
        raise UserError(
            f"{policy!r} is not a policy's file. Give a run, a file or asset:<name>. {remedy}".rstrip(),
            code="policy-not-a-file",
        )
    policy = hub.download(policy) if policy.startswith(hub.PREFIX) else policy
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if device not in devices:
        listed = ", ".join(f"device={name!r}" for name in devices)
        raise UserError(f"device={device} is not available; {listed} is.", code="device-missing")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64):
        raise UserError(
            f"seed={ascii(seed)[:40]} must be a whole number from 0 to 2**64 - 1, or None.", code="seed-invalid"
        )
    actor = load_deployed(policy)
    check_history(actor, "this caller")
    return LoadedPolicy(actor.to(device), read_metadata(build.resolve_policy_file(policy)), seed)


def hash_normalisation(body: Embodiment) -> str:
    """Return the SHA-256 of the conversion between the robot's units and the network's."""
    values = asdict(body)
    return hashlib.sha256(json.dumps({name: values[name] for name in HASHED}, sort_keys=True).encode()).hexdigest()


def find_control_hz(metadata: PolicyMetadata) -> float | None:
    """Return the control steps per second of the robot that a policy was trained for.

    Files of earlier versions do not store it, but name their simulator: its spec is read if it is installed in this
    environment, and if its settings name no code to run. Else None.

    Raises:
        UserError: the file's rate is not a positive number.
    """
    if (rate := metadata.extra.get("control_hz")) is not None:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
            raise UserError(
                f"The policy's file has control_hz={ascii(rate)[:40]}; it must be a positive number.",
                code="control-rate-invalid",
            )
        return float(rate)
    from embodied_rl.config.freeze import freeze_config
    from embodied_rl.interfaces.sim import Unavailable
    from embodied_rl.runtime.simulators.kind import SimulatorKind
    from embodied_rl.schema import SimNode
    from embodied_rl.schema.untrusted_settings import check_file

    sim = metadata.extra.get("sim")
    if not isinstance(sim, Mapping):
        return None
    try:
        check_file(SimNode, sim, "the policy's file", where="sim")
        kind = SimulatorKind.find(freeze_config(SimNode, dict(sim), "sim"))
        return None if kind.interpreter is not None else float(kind.spec.control_hz)
    except (UserError, Unavailable):
        return None  # the simulator is not installed, or its settings are of another version
