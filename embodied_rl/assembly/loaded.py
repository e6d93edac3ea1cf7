"""A policy for whoever deploys it: load it, read what it expects, give it an observation, get actions."""

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
from embodied_rl.assembly import build
from embodied_rl.assembly.acting import WORDS, load_deployed
from embodied_rl.checkpoints.policy_file import PolicyMetadata, read_metadata
from embodied_rl.interfaces.description import PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.given_observation import as_array, read_observation
from embodied_rl.interfaces.policy import Actor, NoiseKeys

HASHED = (
    "state_names", "state", "action_names", "action_low", "action_high", "action", "views", "relative", "gripper",
)  # fmt: skip
"""Entries of an embodiment that lie between the robot and the network."""


class LoadedPolicy:
    """A policy that acts. `embodied_rl.load_policy` makes one.

    Attributes:
        actor: the policy as this library's commands use it.
        metadata: of its file.
    """

    def __init__(self, actor: Actor, metadata: PolicyMetadata, seed: int | None = None) -> None:
        """Wrap an actor.

        Args:
            actor: deployed.
            metadata: of its file.
            seed: see `embodied_rl.load_policy`.
        """
        self.actor, self.metadata = actor, metadata
        self._seed, self._calls = seed, 0

    @cached_property
    def spec(self) -> PolicyDescription:
        """Return what the policy expects and returns."""
        return describe_actor(self.actor, find_control_hz(self.metadata))

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
            prefix: [p, A] in the robot's units, what is planned from now on, such as the actions that the robot
                executes meanwhile; [n, p, A] for rows.
            committed: how many of these are executed regardless of the answer, which begins with them; int64 [n] for
                rows. None: all.
            strategy: how the answer continues them: "prefix", by a policy that is trained to, up to
                `spec.prefix_trained_to`; "replacement" or "guided", by any.
            whole: return all actions that are predicted, `spec.horizon`.

        Returns:
            float32 [executed, A] in the robot's units, within its limits; [n, executed, A] for rows.

        Raises:
            UserError: the observation or the prefix does not fit; the message says what does.
        """
        seen, single = read_observation(observation, self.spec)
        given, counts = _read_plan(prefix, committed, single)
        actions = self.actor.infer(seen, self._draw_keys(len(seen)), given, counts, whole=whole, strategy=strategy)
        return actions[0] if single else actions

    def reset(self) -> None:
        """Begin anew with the draws of a seed, as for a new episode. Without a seed there is nothing to begin."""
        self._calls = 0

    def _draw_keys(self, rows: int) -> NoiseKeys | None:
        if self._seed is None:
            return None
        self._calls += 1
        return NoiseKeys(self._seed, np.arange(rows, dtype=np.int64), np.full(rows, self._calls - 1, np.int64))


def _read_plan(prefix: Any, committed: Any, single: bool) -> tuple[NDArray[np.float32] | None, NDArray[Any] | None]:
    """Return a prefix [n, p, A] and how many of its actions are committed [n]; the actor checks both against itself."""
    if prefix is None:
        if committed is not None:
            raise UserError("committed says how many actions of a prefix are: give the prefix, too.")
        return None, None
    given, counts = as_array(prefix, "prefix"), None if committed is None else as_array(committed, "committed")
    if given.dtype.kind not in "fiu":
        raise UserError(f"prefix is {given.dtype}: it holds actions, numbers in the robot's units.")
    if counts is not None and counts.dtype.kind not in "iu":
        raise UserError(f"committed is {ascii(committed)[:40]}: it is a whole number, or one for each row.")
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinity, which is refused
        given = given.astype(np.float32)
    return (given[None], None if counts is None else counts[None]) if single else (given, counts)


def load_policy(policy: str | os.PathLike[str], *, seed: int | None = None, device: str = "cpu") -> LoadedPolicy:
    """Load a policy to act with; see `embodied_rl.load_policy`."""
    policy = os.fspath(policy)
    if not policy:
        raise UserError("load_policy('') names no policy. Give a run, a file or asset:<name>.")
    if policy in WORDS or "://" in policy:
        remedy = "embodied_rl.deployment.policy_server.client.PolicyClient asks a server" if "://" in policy else ""
        raise UserError(f"{policy!r} is no file of a policy. Give a run, a file or asset:<name>. {remedy}".rstrip())
    if device not in (there := _list_devices()):
        raise UserError(f"device={device} is not there; {', '.join(f'device={name!r}' for name in there)} is.")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64):
        raise UserError(f"seed={ascii(seed)[:40]} must be a whole number from 0 to 2**64 - 1, or None.")
    return LoadedPolicy(load_deployed(policy).to(device), read_metadata(build.resolve_policy_file(policy)), seed)


def _list_devices() -> list[str]:
    if not torch.cuda.is_available():
        return ["cpu"]
    return ["cpu", "cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def describe_actor(actor: Actor, control_hz: float | None) -> PolicyDescription:
    """Return what an actor expects and returns."""
    body: Embodiment = actor.embodiment
    return PolicyDescription(
        cameras=dict.fromkeys(body.cameras, body.image_size),
        state_names=body.state_names,
        action_names=body.action_names,
        action_low=body.action_low,
        action_high=body.action_high,
        control_hz=control_hz,
        horizon=actor.network.spec.horizon,
        executed=body.executed,
        words=() if body.tokenizer else tuple(word for word in body.vocabulary if word),
        prompt_length=body.token_length,
        prefix_trained_to=int(getattr(actor, "prefix_trained_to", 0)),
        normalisation=hash_normalisation(body),
    )


def hash_normalisation(body: Embodiment) -> str:
    """Return the SHA-256 of what lies between the robot's units and the network's."""
    said = asdict(body)
    return hashlib.sha256(json.dumps({name: said[name] for name in HASHED}, sort_keys=True).encode()).hexdigest()


def find_control_hz(metadata: PolicyMetadata) -> float | None:
    """Return the control steps per second of the robot that a policy was trained for.

    Files of earlier versions do not say it, but name their simulator: it is asked where it is installed in this
    environment, and where its settings name no code to run. Else None.

    Raises:
        UserError: the file says something that is no rate.
    """
    if (said := metadata.extra.get("control_hz")) is not None:
        if isinstance(said, bool) or not isinstance(said, int | float) or not 0 < said < math.inf:
            raise UserError(f"The policy's file says control_hz={ascii(said)[:40]}, which is no rate.")
        return float(said)
    from embodied_rl.config.freeze import freeze_config
    from embodied_rl.config.schema import SimNode
    from embodied_rl.config.untrusted_settings import check_file
    from embodied_rl.interfaces.sim import Unavailable
    from embodied_rl.runtime.simulators.kind import SimulatorKind

    sim = metadata.extra.get("sim")
    if not isinstance(sim, Mapping):
        return None
    try:
        check_file(SimNode, sim, "the policy's file", where="sim")
        kind = SimulatorKind.find(freeze_config(SimNode, dict(sim), "sim"))
        return None if kind.interpreter is not None else float(kind.spec.control_hz)
    except (UserError, Unavailable):
        return None  # the file names a simulator that is not here, or settings of another version
