"""Access control of a server: loopback clients only, or clients with the token."""

import hashlib
import hmac
import ipaddress
import os

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from embodied_rl.interfaces.errors import UserError
from embodied_rl.serving.refusal import Refusal

OPEN = ("/health",)
"""Paths that need no token."""
SHORTEST_TOKEN = 16


def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_token(host: str, variable: str | None) -> str | None:
    """Return the token that requests must have; None if none is needed.

    Args:
        host: the address of the server.
        variable: the environment variable that holds the token.

    Raises:
        UserError: other machines reach the address and no token is set; or that token is not a valid one.
    """
    if variable is None:
        if is_loopback(host):
            return None
        raise UserError(
            f"host={host} can be reached from other machines, so a token is needed: put one into an environment "
            "variable, and name it, token_variable=<NAME>. Or leave host=127.0.0.1.",
            code="token-missing",
        )
    token = os.environ.get(variable, "")
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise UserError(
            f"token_variable={variable}: the environment variable must hold at least {SHORTEST_TOKEN} printable ASCII "
            "characters. One can be made with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            code="token-invalid",
        )
    return token


def guard(application: ASGIApp, token: str | None) -> ASGIApp:
    """Wrap the application in a token check or, without a token, in a check of the `Host` header.

    A web page in a browser of this machine can send requests to loopback addresses, but not with their name as `Host`.
    """
    if token is not None:
        return _TokenGuard(application, token)
    return TrustedHostMiddleware(application, ["localhost", "127.0.0.1", "[::1]"], www_redirect=False)


class _TokenGuard:
    """Middleware that answers 401 to requests without the token."""

    def __init__(self, application: ASGIApp, token: str) -> None:
        self._application, self._digest = application, _digest(f"Bearer {token}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            sent = Headers(scope=scope).get("authorization", "")
            if not hmac.compare_digest(_digest(sent), self._digest):
                refusal = Refusal(401, "the token is missing or wrong: send it as API key.", code="invalid_api_key")
                answer = JSONResponse(refusal.describe(), 401, {"WWW-Authenticate": "Bearer"})
                await answer(scope, receive, send)
                return
        await self._application(scope, receive, send)


def _digest(text: str) -> bytes:
    """Return a digest of constant length."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
