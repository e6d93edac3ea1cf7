"""`embodied-rl contract`: a robot's file as a contract of rosetta, or a contract as a robot's file (docs/robots.md)."""

from pathlib import Path

from embodied_rl.config.schema import ContractConfig
from embodied_rl.deployment.robots.reading import find_robot_file
from embodied_rl.deployment.rosetta.contract_reading import read_contract
from embodied_rl.deployment.rosetta.contract_writing import write_contract
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.atomic_write import make_folder, write_text


def run(config: ContractConfig) -> int:
    """Convert one file, and write or print the other one."""
    text, missing = _convert(config)
    if config.out is None:
        print(text, end="")
    else:
        make_folder(Path(config.out).parent, "out")
        write_text(Path(config.out), text, "out")
        print(f"wrote {config.out}")
    if missing:
        print(f"# {len(missing)} keys stand as ?, because contracts do not say them: {', '.join(missing)}")
    return 0


def convert(config: ContractConfig) -> None:
    """Convert without writing, for `--dry-run`. Raises UserError as `run` would."""
    _convert(config)


def _convert(config: ContractConfig) -> tuple[str, list[str]]:
    if (config.robot is None) == (config.contract is None):
        raise UserError("contract takes one of robot=<name or yaml> and contract=<yaml of rosetta>.")
    if config.out is not None and Path(config.out).exists() and not config.replace:
        raise UserError(f"out={config.out} is there already: choose another name, or replace=true.")
    if config.contract is not None:
        return read_contract(Path(config.contract))
    return write_contract(find_robot_file(str(config.robot))), []
