"""From mappings to frozen dataclasses and back."""

from dataclasses import FrozenInstanceError, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.config.freeze import (
    at_least,
    freeze_config,
    take_other_keys,
    thaw_config,
    to_yaml,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import TrainConfig
from embodied_rl.schema.config_file import load_config
from tests.support.refusals import refuses


class Mode(Enum):
    FAST = 1
    SLOW = 2


@dataclass(frozen=True)
class Inner:
    size: int = at_least(1, 3)
    rate: float = 0.1
    pair: tuple[int, float] = (1, 2.0)
    many: tuple[float, ...] | None = None
    names: list[str] = field(default_factory=list)
    table: dict[str, float] = field(default_factory=dict)
    kind: Literal["round", "square"] = "round"
    mode: Mode = Mode.FAST
    path: Path = Path("here")
    maybe: int | None = None
    number_or_text: int | str = 0
    anything: Any = None


@dataclass(frozen=True)
class Node:
    name: str
    inner: Inner = field(default_factory=Inner)
    options: dict[str, Any] = take_other_keys()


def test_every_kind_of_value() -> None:
    given_values = {
        "size": 4, "rate": 1, "pair": [3, 4], "many": [1, 2.5], "names": ["a"], "table": {"x": 1}, "kind": "square",
        "mode": "slow", "path": "there", "maybe": None, "number_or_text": "x", "anything": [1, {"y": None}],
    }  # fmt: skip
    inner = freeze_config(Inner, given_values)
    assert inner == Inner(
        4, 1.0, (3, 4.0), (1.0, 2.5), ["a"], {"x": 1.0}, "square", Mode.SLOW, Path("there"), None, "x", [1, {"y": None}]
    )
    assert isinstance(inner.rate, float) and isinstance(inner.pair[1], float)
    assert freeze_config(Inner, thaw_config(inner)) == inner


def test_unknown_keys_go_to_the_options_of_a_node() -> None:
    node = freeze_config(Node, {"name": "x", "gravity": 9.81})
    assert node.options == {"gravity": 9.81}
    assert thaw_config(node) == {"name": "x", "inner": thaw_config(Inner()), "gravity": 9.81}


def test_configurations_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        freeze_config(Inner, {}).size = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("mapping", "code", "data"),
    [
        ({"siz": 3}, "key-unknown", ["'node.siz'", "'node.size'"]),
        ({"size": "3"}, "value-wrong-type", ["node.size:", "a whole number", "'3' (str)"]),
        ({"size": 2.5}, "value-wrong-type", ["node.size:", "2.5 (float)"]),
        ({"size": True}, "value-wrong-type", ["node.size:", "True (bool)"]),
        ({"size": None}, "value-wrong-type", ["node.size:", "(null)"]),
        ({"size": 0}, "value-out-of-range", ["node.size", "1, not 0"]),
        ({"rate": "fast"}, "value-wrong-type", ["node.rate:", "a number", "'fast' (str)"]),
        ({"rate": 10**400}, "value-out-of-range", ["node.rate:", "1329 bits"]),
        ({"pair": [1]}, "value-wrong-type", ["node.pair:", "a list of 2", "[1] (list)"]),
        ({"pair": [1, "x"]}, "value-wrong-type", ["node.pair[1]:", "'x' (str)"]),
        ({"many": [1, "x"]}, "value-wrong-type", ["node.many[1]:", "'x' (str)"]),
        ({"names": "a"}, "value-wrong-type", ["node.names:", "a list", "node.names=[…]", "'a' (str)"]),
        ({"table": 3}, "value-wrong-type", ["node.table:", "a group of keys", "3 (int)"]),
        ({"table": {"x": "y"}}, "value-wrong-type", ["node.table.x:", "'y' (str)"]),
        ({"kind": "rond"}, "value-unknown", ["node.kind:", "'rond'", "'round'", "Known: round, square."]),
        ({"mode": "slwo"}, "value-unknown", ["node.mode:", "'slwo'", "'slow'", "Known: fast, slow."]),
        ({"path": 3}, "value-wrong-type", ["node.path:", "a path", "3 (int)"]),
        ({"number_or_text": []}, "value-wrong-type", ["node.number_or_text:", "a whole number or text", "[] (list)"]),
    ],
)
def test_wrong_values_are_refused(mapping: dict[str, Any], code: str, data: list[str]) -> None:
    with refuses(code, *data):
        freeze_config(Inner, mapping, "node")


def test_wrong_values_of_nested_nodes_are_refused() -> None:
    with refuses("key-missing", "name=<value>"):
        freeze_config(Node, {})
    with refuses("value-wrong-type", "inner:", "inner.size=<value>", "3"):
        freeze_config(Node, {"name": "x", "inner": 3})
    with refuses("value-wrong-type", "name:", "name='\"3\"'"):
        freeze_config(Node, {"name": 3})
    with refuses("value-wrong-type", "True (bool).") as raised:
        freeze_config(Node, {"name": True})
    assert '"True"' not in str(raised.value), "only numbers need quotes"
    with refuses("value-not-finite", "rate", "NaN"):
        freeze_config(Bounded, {"rate": float("nan")})
    with refuses("value-not-finite", "rate", "infinite"):
        freeze_config(Bounded, {"rate": float("inf")})


@dataclass(frozen=True)
class Bounded:
    rate: float | None = at_least(0.0, None)


def test_none_has_no_bounds() -> None:
    assert freeze_config(Bounded, {"rate": None}) == Bounded()


@pytest.mark.thorough
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**40),
    noise=st.floats(0, 10),
    weights=st.none() | st.lists(st.floats(0, 1e6), min_size=1, max_size=6),
    text=st.none() | st.text(alphabet="ab:/=,'\"# é0", min_size=1),
    option=st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
                        lambda inner: st.lists(inner, max_size=3), max_leaves=5),
)  # fmt: skip
def test_saved_configuration_round_trips(tmp_path_factory, seed, noise, weights, text, option) -> None:
    mapping = {
        "sim": {"name": "s", "own": option},
        "policy": {"name": "p", "checkpoint": text},
        "algo": {"name": "a", "sampler": {"noise_level": noise, "step_weights": weights}},
        "seed": seed,
        "run": {"overrides": [] if text is None else [text]},
    }
    config = freeze_config(TrainConfig, mapping)
    path = tmp_path_factory.mktemp("run") / "config.yaml"
    path.write_text(to_yaml(config))
    assert load_config(TrainConfig, path) == config


@pytest.mark.thorough
@pytest.mark.parametrize("logger", [{}, {"name": "json", "live": False}])
def test_truncated_configuration_is_refused(tmp_path, logger) -> None:
    """Truncated at any place: defaults never replace lost values, except in `logger`."""
    named = {"sim": {"name": "s"}, "policy": {"name": "p"}, "algo": {"name": "a"}, "train": {"decisions": 7}}
    config = freeze_config(TrainConfig, named | {"logger": logger})
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    whole = path.read_text()
    ends = [end for end, letter in enumerate(whole) if letter == "\n"]
    for end in [*ends[:-1], *range(0, len(whole) - 2, 7)]:
        path.write_text(whole[:end])
        try:
            assert replace(load_config(TrainConfig, path), logger=config.logger) == config, whole[:end]
        except UserError as error:
            assert str(path) in str(error), error
            if error.code == "config-damaged":
                assert f"policy.checkpoint={tmp_path}" in str(error)


def test_load_config_names_the_file(tmp_path) -> None:
    path = tmp_path / "config.yaml"
    with refuses("config-missing", path):
        load_config(Inner, path)
    path.write_text(to_yaml(Inner()) + "siz: 3\n")
    with refuses("key-unknown", path, "'siz'", "'size'"):
        load_config(Inner, path)
