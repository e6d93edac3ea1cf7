"""Error replies, in the format of the OpenAI API."""

from typing import Any

LONGEST_QUOTE = 100
"""Maximum length of request text quoted in a message."""

_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class Refusal(Exception):  # noqa: N818 - it is a reply, too
    """Exception for a request that is answered with an error.

    Args:
        status: HTTP status.
        message: what is wrong, and what to do; it never contains a token.
        param: the field of the request that is wrong.
        code: machine-readable code.
        retry_after: seconds until the client should retry.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    def describe(self) -> dict[str, Any]:
        """Return the reply body in the error format of the OpenAI API."""
        kind = "server_error" if self.status >= 500 else _KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def quote(value: object) -> str:
    """Return a value of the request as one short ASCII line for a message."""
    text = ascii(value)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"
