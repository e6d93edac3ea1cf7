"""What the shapes of a checkpoint's tensors tell of a network, and which of them the end of a language model has."""

from collections.abc import Mapping

Shapes = Mapping[str, tuple[int, ...]]


def count_layers(shapes: Shapes, start: str) -> int:
    """Number of numbered modules below a name."""
    return 1 + max((int(name[len(start) :].split(".")[0]) for name in shapes if name.startswith(start)), default=-1)


def list_end_of_language_model(
    start: str, layers: int, width: int, hidden: int, inner: int
) -> dict[str, tuple[int, ...]]:
    """Names → shapes of what follows the keys and values of the last layer, which nothing but a text would need.

    Args:
        start: of the names, up to the layers.
        layers: how many there are.
        width: of a token. hidden: of the feed-forward block. inner: of all heads together.
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
