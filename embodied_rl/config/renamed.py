"""Keys of a configuration that had another name once. Who types or reads an old one is told the new one."""

from collections.abc import Collection

RENAMED = {"episodes": "curriculum"}
"""Old name of a key, or of a folder of YAML → its name."""


def describe_renamed(key: str, known: Collection[str]) -> str:
    """What to write in place of an old key, to follow a message; empty where none of the `known` keys was called so."""
    new = RENAMED.get(key)
    return f" It is called '{new}' now." if new in known else ""
