"""The configuration of `contract`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ContractConfig:
    robot: str | None = None
    """A robot to write as a contract of rosetta: a name, or a YAML file."""
    contract: str | None = None
    """A contract of rosetta to write as a robot's file."""
    out: str | None = None
    """The file to write; null prints it."""
    replace: bool = False
    """Write over a file that is there."""
