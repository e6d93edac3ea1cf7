"""`embodied-rl contract`: convert a robot file to a contract of rosetta, or back (docs/robots/rosetta.md)."""

from pathlib import Path

from embodied_rl.deployment.configuration import ContractConfig
from embodied_rl.deployment.robots.reading import find_robot_file
from embodied_rl.deployment.rosetta.contract_reading import read_contract
from embodied_rl.deployment.rosetta.contract_writing import write_contract
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import check_folder, make_folder, write_text


def run(config: ContractConfig) -> int:
    """Convert a file, and write or print the result."""
    text, missing = convert(config)
    if config.out is None:
        print(text, end="")
    else:
        make_folder(Path(config.out).parent, "out")
        write_text(Path(config.out), text, "out")
        print(f"wrote {config.out}")
    if missing:
        print(f"# {len(missing)} keys are ?, because contracts do not have them: {', '.join(missing)}")
    return 0


def convert(config: ContractConfig) -> tuple[str, list[str]]:
    """Return the text of the other file, and its keys without a value.

    Raises:
        UserError: not exactly one file is given, it is damaged, or `out` exists.
    """
    if (config.robot is None) == (config.contract is None):
        raise UserError(
            "contract takes one of robot=<name or yaml> and contract=<yaml of rosetta>.", code="keys-contradict"
        )
    if config.out is not None:
        check_folder(config.out, "out", names_folder=False)
    if config.out is not None and Path(config.out).exists() and not config.replace:
        raise UserError(
            f"out={config.out} is there already: choose another name, or replace=true.", code="output-exists"
        )
    if config.contract is not None:
        return read_contract(Path(config.contract))
    return write_contract(find_robot_file(str(config.robot))), []


def check_start(config: ContractConfig) -> None:
    """Convert without writing, for a dry run."""
    convert(config)
