"""A robot's file from a contract of rosetta (see `contract_writing.py`); what means nothing here is refused by its key.

A contract says nothing of limits, rates and units. These stand as `?` in the file that is made, which nobody can load
before a person has written numbers there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.deployment.robots.consistency import check_consistency
from embodied_rl.deployment.robots.reading import describe_robot
from embodied_rl.deployment.robots.robot_file import RobotKeys
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.deployment.rosetta.contract_draft import Draft
from embodied_rl.deployment.rosetta.contract_keys import ContractKeys
from embodied_rl.deployment.rosetta.contract_writing import ACTION, IMAGE, OURS, STATE, make_contract, write_yaml
from embodied_rl.interfaces.errors import UserError

_NO_PLACE = {
    "teleop": "operators move the robot through the topics of `operator`, which the robot's file names",
    "rewards": "rewards come from the simulator or from `reward=`",
    "signals": "episodes end by the operator's label, or by the simulator",
    "info": "it has no place in a robot's file",
    "complementary_data": "it has no place in a robot's file",
    "adjunct": "topics that are recorded alone are named when recording",
}


def read_contract(file: Path) -> tuple[str, list[str]]:
    """Return the text of a robot's file, and the keys that stand as ? in it.

    Raises:
        UserError: the contract is damaged, or says what a robot's file cannot; the message names file and key.
    """
    contract = read_strict_yaml(file)
    try:
        if OURS in contract:
            return write_yaml(_take_ours(contract)), []
        return _make_draft(contract)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _take_ours(contract: dict[str, Any]) -> Mapping[str, Any]:
    """Return the robot's file that a contract carries, if the contract still means the same."""
    keys = contract.pop(OURS)
    if not isinstance(keys, Mapping):
        raise UserError(f"{OURS} holds no keys: take it out, and fill in the file that is made without it.")
    robot = describe_robot(freeze_config(RobotKeys, dict(keys), OURS))
    check_consistency(robot)
    if (difference := _find_difference(make_contract(robot), contract, "")) is not None:
        raise UserError(f"{difference} was changed, and {OURS} says otherwise: change both, or take {OURS} out.")
    return keys


def _find_difference(wanted: Any, found: Any, where: str) -> str | None:
    """Return the key at which two values differ, or None."""
    if not (isinstance(wanted, Mapping) and isinstance(found, Mapping)):
        return None if wanted == found else where
    for key in [*wanted, *(key for key in found if key not in wanted)]:
        below = f"{where}.{key}" if where else str(key)
        if key not in wanted or key not in found:
            return below
        if (deeper := _find_difference(wanted[key], found[key], below)) is not None:
            return deeper
    return None


def _make_draft(contract: Mapping[str, Any]) -> tuple[str, list[str]]:
    for key in contract:
        if key in _NO_PLACE:
            raise UserError(f"{key}: {_NO_PLACE[key]}. Take it out of the contract to convert the rest.")
    keys = freeze_config(ContractKeys, {key: value for key, value in contract.items() if not key.startswith("x-")})
    draft = Draft(keys.robot_type, keys.fps)
    for key, source in keys.observations.items():
        if key.startswith(IMAGE):
            draft.add_camera(key.removeprefix(IMAGE), source, f"observations.{key}")
        elif key == STATE:
            draft.add_state(source, f"observations.{key}")
        else:
            raise UserError(f"observations.{key}: pictures and one {STATE} are read, no other observations.")
    if list(keys.actions) != [ACTION]:
        found = ", ".join(keys.actions) or "none"
        raise UserError(f"actions: a robot has one command, {ACTION!r}, and here are {found}.")
    draft.set_action(keys.actions[ACTION], f"actions.{ACTION}")
    draft.set_instruction(keys.tasks)
    return draft.write(), draft.list_missing()
