"""The configuration of `contract`."""

from dataclasses import dataclass

from embodied_rl.interfaces.trust import FilePath


@dataclass(frozen=True)
class ContractConfig:
    robot: FilePath | None = None
    """A robot to write as a contract of rosetta: a name, or a YAML file."""
    contract: FilePath | None = None
    """A contract of rosetta to write as a robot's file."""
    out: FilePath | None = None
    """The file to write; null prints it."""
    replace: bool = False
    """Write over a file that is there."""
