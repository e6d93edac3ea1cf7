"""Settings of a policy server, and checks before its start. Does not import the extra `serve`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

from embodied_rl.deployment.policy_client.request import WireNames
from embodied_rl.interfaces.errors import UserError


@dataclass(frozen=True)
class PolicyServerSettings:
    """Settings of a policy server.

    Attributes:
        host, port: address to listen on; port 0 selects a free port.
        token_variable: environment variable of the access token; None: no token.
        batch: maximum number of requests in a batch.
        wait: seconds that a request waits for those of other clients.
        clients: maximum number of connections.
        message: maximum bytes of a message.
        deadline: timeout of a request in seconds.
        send: actions for third-party clients: the whole horizon, or only those to execute.
        metadata: metadata for clients instead of the server's description; empty: the description.
        names: names of observation entries on the wire.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token_variable: str | None = None
    batch: int = 8
    wait: float = 0.002
    clients: int = 64
    message: int = 16 * 2**20
    deadline: float = 30.0
    send: Literal["horizon", "executed"] = "horizon"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    names: WireNames = field(default_factory=WireNames)


def check_settings(settings: PolicyServerSettings) -> None:
    """Check the settings before the policy is loaded.

    Raises:
        UserError: the extra is missing, or the address needs a token that is not set.
    """
    if find_spec("starlette") is None:
        raise UserError("a policy server needs starlette: pip install 'embodied-rl[serve]'", code="package-missing")
    from embodied_rl.serving.access import find_token

    find_token(settings.host, settings.token_variable)
