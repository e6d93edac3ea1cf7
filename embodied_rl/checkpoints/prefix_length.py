"""Keep `FlowBackbone.prefix_trained_to` in files: our own and, in the header of their weights, other projects'.

Loaders of lerobot and openpi skip such entries of a safetensors header, and have no place for it elsewhere.
"""

from collections.abc import Mapping

from embodied_rl.actors.learning.checkpoint import CheckpointError

KEY = "embodied_rl.prefix_trained_to"


def parse_prefix_length(value: object) -> int:
    """Return a stored length, which may come from a stranger.

    Raises:
        ValueError: it is no number of actions.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"prefix_trained_to {value!r:.40} is no number of actions")
    return value


def write_prefix_length(header: Mapping[str, str], length: int) -> dict[str, str]:
    """Return the header of another project's weights with a length, or without one where it is 0."""
    others = {name: text for name, text in header.items() if name != KEY}
    return others | ({KEY: str(length)} if length else {})


def read_prefix_length(header: Mapping[str, str], where: str) -> int:
    """Return the length in the header of another project's weights; 0 where there is none.

    Raises:
        CheckpointError: it is no number of actions.
    """
    text = header.get(KEY, "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise CheckpointError(f"{where} is damaged: {KEY} in the header of its weights is {text!r:.40}, no number.")
    return int(text)
