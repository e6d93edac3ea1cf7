"""A policy behind a server as an evaluation asks it: the connection, and what is checked of it."""

import os
from collections.abc import Sequence
from typing import Any

from embodied_rl.config.schema import ServedNode
from embodied_rl.deployment.policy_server.client import PolicyClient
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec

_TOLD = ("embodied_rl", "policy", "sha256", "version", "normalisation", "control_hz", "executed")


def ask_server(url: str, node: ServedNode) -> PolicyClient:
    """Connect to a policy server.

    Raises:
        UserError: the address is none, or the token's variable is empty.
        NoPolicyAnswer: nobody answers there.
    """
    token = None
    if node.token_variable is not None and not (token := os.environ.get(node.token_variable)):
        raise UserError(f"server.token_variable={node.token_variable}: the environment variable is not set.")
    return PolicyClient(url, deadline=node.deadline, token=token, names=node.keys, key=node.actions)


def check_server(client: PolicyClient, specs: Sequence[SimulatorSpec]) -> None:
    """Check that a served policy fits simulators, and print what the server does not say and nobody checks.

    Raises:
        UserError: it does not fit; the message names what.
    """
    for spec in specs:
        try:
            unknown = client.check_body(spec.body, spec.words)
        except UserError as error:
            raise UserError(f"{client.url}: {error}") from None
        if unknown:
            print(f"{client.url} does not say, and nobody checks: {', '.join(unknown)}.")


def end_asking(client: PolicyClient) -> None:
    """Close the connection; say so if the weights were not the same all the time."""
    client.close()
    if len(client.versions) > 1:
        listed = ", ".join(map(str, sorted(client.versions)))
        print(f"{client.url}: its weights changed meanwhile (versions {listed}); the result is of none of them alone.")


def describe_server(client: PolicyClient) -> dict[str, Any]:
    """Return what a report says of a server's policy."""
    said = client.metadata
    return {name: said[name] for name in _TOLD if isinstance(said.get(name), str | int | float)}
