"""The encoding of every type, compared with the independent encoder of Cyclone DDS."""

import keyword
import random
import string
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.transport.dds_discovery import DdsTypes
from embodied_rl.deployment.transport.messages import ARRAY, BASE, NAME, Messages

pytestmark = pytest.mark.thorough
JAZZY = Messages("jazzy")
TYPES = DdsTypes(JAZZY)
SHORT = 5


def sample(kind: Any, source: random.Random) -> Any:
    """Return a random value of a field: a number, a short text, a short sequence."""
    what, detail = kind
    if what == BASE:
        return sample_scalar(detail[0], source)
    if what == NAME:
        return sample_message(detail, source)
    inner, bound = detail
    count = bound if what == ARRAY else source.randrange(min(bound or SHORT, SHORT) + 1)
    return [sample(inner, source) for _ in range(count)]


def sample_scalar(name: str, source: random.Random) -> Any:
    if name == "string":
        return "".join(source.choices(string.ascii_letters + "_/ ", k=source.randrange(9)))
    if name == "bool":
        return source.random() < 0.5
    if name.startswith("float"):
        return float(np.dtype(name).type(source.uniform(-1e3, 1e3)))
    limits = np.iinfo({"byte": "int8", "char": "uint8"}.get(name, name))
    return source.randint(0 if name == "byte" else int(limits.min), int(limits.max))


def sample_message(type_name: str, source: random.Random) -> Any:
    return JAZZY.make(type_name, **{name: sample(kind, source) for name, kind in JAZZY.find_fields(type_name)})


def to_cyclone(kind: Any, value: Any) -> Any:
    """Convert a value to the classes of Cyclone DDS."""
    what, detail = kind
    if what == NAME:
        fields = JAZZY.find_fields(detail)
        return TYPES.find(detail)(**{name: to_cyclone(inner, read(value, name)) for name, inner in fields})
    return value if what == BASE else [to_cyclone(detail[0], each) for each in np.asarray(value, object).tolist()]


def read(message: Any, name: str) -> Any:
    return getattr(message, name + "_" if keyword.iskeyword(name) else name)


@pytest.mark.parametrize("seed", range(3))
def test_another_encoder_makes_the_same_bytes(seed: int) -> None:
    for type_name in JAZZY.list_types():
        message = sample_message(type_name, random.Random(f"{seed} {type_name}"))
        raw, theirs = JAZZY.encode(type_name, message), bytes(to_cyclone((NAME, type_name), message).serialize())
        assert theirs.ljust(len(theirs) + -len(theirs) % 4, b"\0") == raw.ljust(len(raw) + -len(raw) % 4, b"\0"), (
            type_name
        )
