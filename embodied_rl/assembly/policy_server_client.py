"""The connection to a policy server for evaluations, and checks of the served policy."""

from collections.abc import Sequence
from typing import Any

from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec

_REPORTED = ("embodied_rl", "policy", "sha256", "version", "normalisation", "control_hz", "executed")


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
