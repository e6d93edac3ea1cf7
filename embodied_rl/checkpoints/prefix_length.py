"""Storage of `FlowBackbone.prefix_trained_to` in policy files and in the headers of other projects' weights.

Loaders of lerobot and openpi skip unknown entries of these safetensors headers.
"""

from collections.abc import Mapping

from embodied_rl.actors.learning.checkpoint import CheckpointError

KEY = "embodied_rl.prefix_trained_to"


def parse_prefix_length(value: object) -> int:
    """Return an untrusted stored length.

    Raises:
        ValueError: it is not a number of actions.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"prefix_trained_to {value!r:.40} is not a number of actions")
    return value


def write_prefix_length(header: Mapping[str, str], length: int) -> dict[str, str]:
    """Return the header of another project's weights with a length, or without one if it is 0."""
    others = {name: text for name, text in header.items() if name != KEY}
    return others | ({KEY: str(length)} if length else {})


def read_prefix_length(header: Mapping[str, str], where: str) -> int:
    """Return the length in the header of another project's weights, or 0.

    Raises:
        CheckpointError: it is not a number of actions.
    """
    text = header.get(KEY, "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise CheckpointError(
            f"{where} is damaged: {KEY} in the header of its weights is {text!r:.40}, not a number.",
            code="checkpoint-damaged",
        )
    return int(text)
