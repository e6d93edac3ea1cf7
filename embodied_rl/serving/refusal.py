"""Refusals of a request, and their form in the OpenAI API."""

from typing import Any

LONGEST_QUOTE = 100
"""Characters of a request that a message repeats."""

_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class Refusal(Exception):  # noqa: N818 - it is an answer, too
    """An error raised for a request that is not answered.

    Args:
        status: of HTTP.
        message: what is wrong, and what to do; it never contains a token.
        param: the field of the request that is wrong.
        code: a word for programs.
        retry_after: seconds after which to ask again.
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
        """Return the body of the answer, as the OpenAI API's errors are."""
        kind = "server_error" if self.status >= 500 else _KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def quote(value: object) -> str:
    """Return what was sent as one short line of ASCII for a message."""
    text = ascii(value)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"
