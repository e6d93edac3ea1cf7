"""Count layers from a checkpoint's tensor shapes, and list the unused tensors at a language model's end."""

from collections.abc import Mapping

Shapes = Mapping[str, tuple[int, ...]]


def count_layers(shapes: Shapes, start: str) -> int:
    """Count the numbered modules below a name."""
    return 1 + max((int(name[len(start) :].split(".")[0]) for name in shapes if name.startswith(start)), default=-1)


def list_end_of_language_model(
    start: str, layers: int, width: int, hidden: int, inner: int
) -> dict[str, tuple[int, ...]]:
    """Return name → shape of the tensors after the last layer's keys and values, used only for text output.

    Args:
        start: start of the names, up to the layers.
        layers: number of layers.
        width: size of a token. hidden: size of the feed-forward block. inner: size of all heads together.
    """
    last = f"{start}layers.{layers - 1}."
    return {
        f"{start}norm.weight": (width,),
        f"{last}post_attention_layernorm.weight": (width,),
        f"{last}self_attn.q_proj.weight": (inner, width),
        f"{last}self_attn.o_proj.weight": (width, inner),
        f"{last}mlp.gate_proj.weight": (hidden, width),
        f"{last}mlp.up_proj.weight": (hidden, width),
        f"{last}mlp.down_proj.weight": (width, hidden),
    }
