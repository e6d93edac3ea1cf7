"""Files with each value replaced by one of another type: they load, or are refused in one line."""

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied_rl.deployment.robots.reading import read_robot
from embodied_rl.deployment.rosetta.contract_reading import read_contract
from embodied_rl.deployment.rosetta.contract_writing import write_contract
from embodied_rl.interfaces.errors import UserError
from tests.support.robots import read_keys, write_robot

pytestmark = pytest.mark.thorough
ODD = (
    None,
    True,
    [],
    {},
    "",
    "x",
    "../../etc/passwd",
    -1,
    0,
    1e308,
    [[]],
    [{}],
    {"a": 1},
    {1: 2},
    "{{x}}",
    "a\nb",
    "é\0",
)
EACH = 40


def list_places(node: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and every place of a list."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [place for key, value in items for place in ((*way, key), *list_places(value, (*way, key)))]


def spoil(keys: Any, draw: random.Random) -> Any:
    spoilt = copy.deepcopy(keys)
    *way, last = draw.choice(list_places(spoilt))
    node = spoilt
    for key in way:
        node = node[key]
    node[last] = draw.choice(ODD)
    return spoilt


@pytest.mark.parametrize("name", ["tabletop", "franka", "mobile_base"])
def test_a_robot_s_file(tmp_path: Path, name: str) -> None:
    draw, refused = random.Random(7), 0
    for _ in range(EACH):
        file = tmp_path / "robot.yaml"
        file.write_text(yaml.safe_dump(spoil(read_keys(name), draw)))
        try:
            read_robot(file)
        except UserError as error:
            refused += 1
            assert str(error).startswith(str(file)) and len(str(error)) < 1500
    assert refused > EACH / 2


@pytest.mark.parametrize("carrying", [True, False])
def test_a_contract(tmp_path: Path, carrying: bool) -> None:
    draw, refused = random.Random(8), 0
    robot = write_robot(tmp_path, "franka", cameras__wrist__resize="nearest", cameras__wrist__fit="stretch")
    keys = yaml.safe_load(write_contract(robot))
    if not carrying:
        del keys["x-embodied-rl"]
    for _ in range(EACH):
        file = tmp_path / "contract.yaml"
        file.write_text(yaml.safe_dump(spoil(keys, draw)))
        try:
            read_contract(file)
        except UserError as error:
            refused += 1
            assert str(error).startswith(str(file)) and len(str(error)) < 1500
    assert refused > EACH / 3
