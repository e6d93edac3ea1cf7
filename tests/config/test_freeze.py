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
    load_config,
    save_config,
    take_other_keys,
    thaw_config,
    to_yaml,
)
from embodied_rl.config.schema import TrainConfig
from embodied_rl.interfaces.errors import UserError


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


def test_what_is_frozen_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        freeze_config(Inner, {}).size = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"siz": 3}, "unknown key 'node.siz'. Did you mean 'node.size'?"),
        ({"size": "3"}, "node.size: expected a whole number, got '3' (str)."),
        ({"size": 2.5}, "node.size: expected a whole number, got 2.5 (float)."),
        ({"size": True}, "node.size: expected a whole number, got True (bool)."),
        ({"size": None}, "node.size: expected a whole number, got nothing (null)."),
        ({"size": 0}, "node.size must be at least 1, not 0."),
        ({"rate": "fast"}, "node.rate: expected a number, got 'fast' (str)."),
        ({"pair": [1]}, "node.pair: expected a list of 2, got [1] (list)."),
        ({"pair": [1, "x"]}, "node.pair[1]: expected a number, got 'x' (str)."),
        ({"many": [1, "x"]}, "node.many[1]: expected a number, got 'x' (str)."),
        ({"names": "a"}, "node.names: expected a list, such as node.names=[…], got 'a' (str)."),
        ({"table": 3}, "node.table: expected a group of keys, got 3 (int)."),
        ({"table": {"x": "y"}}, "node.table.x: expected a number, got 'y' (str)."),
        ({"kind": "rond"}, "node.kind: unknown value 'rond'. Did you mean 'round'? Known: round, square."),
        ({"mode": "slwo"}, "node.mode: unknown value 'slwo'. Did you mean 'slow'? Known: fast, slow."),
        ({"path": 3}, "node.path: expected a path, got 3 (int)."),
        ({"number_or_text": []}, "node.number_or_text: expected a whole number or text, got [] (list)."),
    ],
)
def test_message(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        freeze_config(Inner, mapping, "node")
    assert str(error.value) == message


def test_messages_of_nested_nodes() -> None:
    with pytest.raises(ValueError, match=r"name is missing. Add name=<value>"):
        freeze_config(Node, {})
    with pytest.raises(ValueError, match=r"inner: expected a group of keys, such as inner.size=<value>, got 3"):
        freeze_config(Node, {"name": "x", "inner": 3})
    with pytest.raises(ValueError, match=r"name: expected text, got 3 .*name='\"3\"'"):
        freeze_config(Node, {"name": 3})
    with pytest.raises(ValueError, match=r"name: expected text, got True \(bool\)\.?$"):  # it is no number
        freeze_config(Node, {"name": True})
    with pytest.raises(ValueError, match=r"rate must be at least 0.0, not nan"):
        freeze_config(Bounded, {"rate": float("nan")})


@dataclass(frozen=True)
class Bounded:
    rate: float | None = at_least(0.0, None)


def test_no_bound_on_nothing() -> None:
    assert freeze_config(Bounded, {"rate": None}) == Bounded()


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**40),
    noise=st.floats(0, 10),
    weights=st.none() | st.lists(st.floats(0, 1e6), min_size=1, max_size=6),
    text=st.none() | st.text(alphabet="ab:/=,'\"# é0", min_size=1),
    option=st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
                        lambda inner: st.lists(inner, max_size=3), max_leaves=5),
)  # fmt: skip
def test_a_saved_configuration_is_read_as_it_was(tmp_path_factory, seed, noise, weights, text, option) -> None:
    mapping = {
        "sim": {"name": "s", "own": option},
        "policy": {"name": "p", "checkpoint": text},
        "algo": {"name": "a", "sampler": {"noise_level": noise, "step_weights": weights}},
        "seed": seed,
        "run": {"overrides": [] if text is None else [text]},
    }
    config = freeze_config(TrainConfig, mapping)
    path = tmp_path_factory.mktemp("run") / "config.yaml"
    save_config(config, path)
    assert load_config(TrainConfig, path) == config


@pytest.mark.parametrize("logger", [{}, {"name": "json", "live": False}])
def test_a_configuration_that_was_cut_off_is_refused_with_the_remedy(tmp_path, logger) -> None:
    """After any line and in it: defaults do not stand for what is gone, except for what is shown."""
    named = {"sim": {"name": "s"}, "policy": {"name": "p"}, "algo": {"name": "a"}, "train": {"decisions": 7}}
    config = freeze_config(TrainConfig, named | {"logger": logger})
    path = tmp_path / "config.yaml"
    save_config(config, path)
    whole = path.read_text()
    ends = [end for end, letter in enumerate(whole) if letter == "\n"]
    for end in [*ends[:-1], *range(0, len(whole) - 2, 7)]:
        path.write_text(whole[:end])
        try:
            assert replace(load_config(TrainConfig, path), logger=config.logger) == config, whole[:end]
        except UserError as error:
            assert str(path) in str(error), error
            if "damaged" in str(error):
                assert (
                    f"Restore it from a copy; or start a new run from this one's weights: policy.checkpoint={tmp_path}"
                    in str(error)
                )


def test_a_configuration_that_does_not_fit_is_named(tmp_path) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(ValueError, match="is not there"):
        load_config(Inner, path)
    path.write_text(to_yaml(Inner()) + "siz: 3\n")
    with pytest.raises(ValueError, match=r"config.yaml: unknown key 'siz'. Did you mean 'size'"):
        load_config(Inner, path)
