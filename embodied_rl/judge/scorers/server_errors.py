"""What a user can do about a server that cannot be used."""

from embodied_rl.interfaces.scorer import Reason, ScorerError
from embodied_rl.judge.scorers.http_json import AnsweredError

REMEDIES: dict[Reason, str] = {
    "failed": "Does the server run, and does reward.url end with /v1?",
    "timeout": "Is the server still loading its model? Otherwise give a longer reward.timeout.",
    "busy": "Others use the server as well: try later, or with a lower reward.in_flight.",
    "refused": "Does the model take pictures? It must be one for images and text.",
}


def explain_failure(url: str | None, key_variable: str, error: ScorerError) -> str:
    """Return one line: what went wrong, and the remedy.

    Args:
        url: of the server.
        key_variable: environment variable that holds its key.
        error: that was raised for a request.
    """
    said = str(error).rstrip(".")
    missing = isinstance(error, AnsweredError) and (error.status == 404 or 300 <= error.status < 400)
    remedy = REMEDIES.get("failed" if missing else error.reason, "")
    if any(word in said for word in ("reward.model", "It has:", "no model")):
        remedy = ""
    if "environment variable" in said:
        remedy = f"Set {key_variable} to a key that the server knows, or name another reward.key_variable."
    if is_about_probabilities(error):
        remedy = "This prompt needs log-probabilities, which the server does not return: choose another reward.prompt."
    return f"reward.url={url}: {said}. {remedy}".rstrip()


def is_about_probabilities(error: ScorerError) -> bool:
    """Return whether a server refused to return log-probabilities."""
    return error.reason == "refused" and "logprobs" in str(error)
