"""The configuration keys that were renamed, and the message that tells the user the new name."""

from collections.abc import Collection

RENAMED = {"episodes": "curriculum"}
"""Old name of a key, or of a folder of YAML → its name."""


def describe_renamed(key: str, known: Collection[str]) -> str:
    """Return a sentence that gives the new name of an old key, to append to a message; empty if it is not `known`."""
    new = RENAMED.get(key)
    return f" It is called '{new}' now." if new in known else ""
