"""Convert a contract of rosetta to a robot file; unsupported keys raise errors.

Contracts lack limits, rates and units. The robot file has `?` in their place, and can be loaded once these are filled
in.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config
from embodied_rl.deployment.robots.consistency import check_consistency
from embodied_rl.deployment.robots.reading import RobotKeys, describe_robot
from embodied_rl.deployment.robots.strict_yaml import read_strict_yaml
from embodied_rl.deployment.rosetta.contract_draft import Draft
from embodied_rl.deployment.rosetta.contract_keys import ContractKeys
from embodied_rl.deployment.rosetta.contract_writing import ACTION, IMAGE, OURS, STATE, make_contract, write_yaml
from embodied_rl.interfaces.errors import UserError

_UNSUPPORTED = {
    "teleop": "operators drive the robot through the topics of `operator` in the robot file",
    "rewards": "rewards come from the simulator or from `reward=`",
    "signals": "episodes end by the operator's label, or by the simulator",
    "info": "robot files do not have it",
    "complementary_data": "robot files do not have it",
    "adjunct": "additional topics are given when recording",
}


def read_contract(file: Path) -> tuple[str, list[str]]:
    """Return the text of a robot file, and its keys with ? as the value.

    Raises:
        UserError: the contract is damaged or not supported; the message names file and key.
    """
    contract = read_strict_yaml(file)
    try:
        if OURS in contract:
            return write_yaml(_extract_robot(contract)), []
        return _draft_robot(contract)
    except UserError as error:
        raise UserError(f"{file}: {error}", code=error.code) from None


def _extract_robot(contract: dict[str, Any]) -> Mapping[str, Any]:
    """Return the robot file that a contract contains, if it agrees with the rest of the contract."""
    keys = contract.pop(OURS)
    if not isinstance(keys, Mapping):
        raise UserError(f"{OURS} must have keys: remove it, and fill in the resulting file.", code="contract-invalid")
    robot = describe_robot(freeze_config(RobotKeys, dict(keys), OURS))
    check_consistency(robot)
    if (difference := _find_difference(make_contract(robot), contract, "")) is not None:
        raise UserError(
            f"{difference} disagrees with {OURS}: change both, or remove {OURS}.", code="contract-contradicts-robot"
        )
    return keys


def _find_difference(wanted: Any, found: Any, where: str) -> str | None:
    """Return the first key at which two values differ, or None."""
    if not (isinstance(wanted, Mapping) and isinstance(found, Mapping)):
        return None if wanted == found else where
    for key in [*wanted, *(key for key in found if key not in wanted)]:
        below = f"{where}.{key}" if where else str(key)
        if key not in wanted or key not in found:
            return below
        if (deeper := _find_difference(wanted[key], found[key], below)) is not None:
            return deeper
    return None


def _draft_robot(contract: Mapping[str, Any]) -> tuple[str, list[str]]:
    for key in contract:
        if key in _UNSUPPORTED:
            raise UserError(
                f"{key}: {_UNSUPPORTED[key]}. Remove it from the contract to convert the rest.",
                code="contract-unsupported",
            )
    keys = freeze_config(ContractKeys, {key: value for key, value in contract.items() if not key.startswith("x-")})
    draft = Draft(keys.robot_type, keys.fps)
    for key, source in keys.observations.items():
        if key.startswith(IMAGE):
            draft.add_camera(key.removeprefix(IMAGE), source, f"observations.{key}")
        elif key == STATE:
            draft.add_state(source, f"observations.{key}")
        else:
            raise UserError(
                f"observations.{key}: only images and one {STATE} are supported.", code="contract-unsupported"
            )
    if list(keys.actions) != [ACTION]:
        found = ", ".join(keys.actions) or "none"
        raise UserError(f"actions: one command, {ACTION!r}, is supported, not {found}.", code="contract-unsupported")
    draft.set_action(keys.actions[ACTION], f"actions.{ACTION}")
    draft.set_instruction(keys.tasks)
    return draft.write(), draft.list_missing()
