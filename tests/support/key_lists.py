"""Lists of what checkpoints hold: `golden/keys_*.json`.

The layers of a stack share a line: `layers.{18}.` stands for `layers.0.` to `layers.17.`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def collapse(keys: Iterable[str]) -> list[str]:
    """Keys in their order, those of a stack's layers written as one.

    Raises:
        ValueError: if a stack's layers do not have the same keys.
    """
    keys = list(keys)
    numbers: dict[str, set[int]] = {}
    for key in keys:
        for number in re.findall(r"\.layers\.(\d+)\.", key):
            numbers.setdefault(re.sub(r"\.layers\.\d+\.", ".layers.{}.", key), set()).add(int(number))
    names = dict.fromkeys(re.sub(r"\.layers\.\d+\.", ".layers.{}.", key) for key in keys)
    short = [name.replace("{}", f"{{{len(numbers.get(name, ()))}}}") for name in names]
    if sorted(expand(short)) != sorted(keys):
        raise ValueError("the layers of a stack differ in their keys, so they cannot be written as one")
    return short


def expand(keys: Iterable[str]) -> list[str]:
    """The reverse of `collapse`."""
    return [full for key in keys for full in _layers(key)]


def _layers(key: str) -> list[str]:
    count = re.search(r"\{(\d+)\}", key)
    return [key.replace(count.group(), str(number)) for number in range(int(count.group(1)))] if count else [key]


def read(path: Path) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of a list."""
    short = json.loads(path.read_text())["keys"]
    return {key: tuple(shape) for name, shape in short.items() for key in expand([name])}


def write(path: str, network: Any, half: Mapping[str, Any], note: str, made_by: Mapping[str, str]) -> None:
    """A list of what a checkpoint of this network holds; `half`: the state dict of the network in bfloat16."""
    shapes = {name: list(tensor.shape) for name, tensor in network.state_dict().items()}
    report = {
        "made_by": made_by,
        "note": note,
        "tied": tied(network),
        "float32_in_bfloat16": collapse(name for name, tensor in half.items() if str(tensor.dtype) == "torch.float32"),
        "keys": {name: shapes[expand([name])[0]] for name in collapse(shapes)},
    }
    text = re.sub(r"\[[\d,\s]+\]", lambda shape: "".join(shape.group().split()), json.dumps(report, indent=1))
    Path(path).write_text(text + "\n")


def tied(network: Any) -> list[list[str]]:
    """Groups of names that stand for one and the same parameter."""
    groups: dict[int, list[str]] = {}
    for name, parameter in network.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [sorted(names) for names in groups.values() if len(names) > 1]
