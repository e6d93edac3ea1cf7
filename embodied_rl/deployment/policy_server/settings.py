"""The settings of a server, and what keeps it from starting. Imports nothing of the extra."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

from embodied_rl.deployment.policy_server.names import WireNames
from embodied_rl.interfaces.errors import UserError


@dataclass(frozen=True)
class PolicyServerSettings:
    """The settings of a server.

    Attributes:
        host, port: where it listens; port 0 is a free one.
        token_variable: environment variable of the token; None needs none.
        batch: most requests answered together.
        wait: seconds that a request waits for those of other clients.
        clients: most connections.
        message: bytes of a message.
        deadline: seconds until a request is given up.
        send: actions that clients of other projects get: the whole horizon, or those that are meant to be executed.
        metadata: what clients get when they connect, in place of the server's own description; empty: that.
        names: how observations are called on the wire.
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


def check_installed(what: str) -> None:
    """Check that the extra is there.

    Raises:
        UserError: it is not; the message says how to install it.
    """
    if missing := [name for name in ("websockets", "msgpack") if find_spec(name) is None]:
        raise UserError(f"{what} needs {' and '.join(missing)}: pip install 'embodied-rl[serve]'")


def check_settings(settings: PolicyServerSettings) -> None:
    """Check what can be known before the policy is loaded.

    Raises:
        UserError: the extra is missing, or the address needs a token that is not there.
    """
    check_installed("a policy server")
    if find_spec("starlette") is None:
        raise UserError("a policy server needs starlette: pip install 'embodied-rl[serve]'")
    from embodied_rl.serving.access import find_token

    find_token(settings.host, settings.token_variable)
