"""Describe the cores, accelerators and memory of this machine, or of another one."""

import re
from dataclasses import dataclass

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance

_PART = re.compile(r"(\d+)x(core|gpu)s?(?::(\d+(?:\.\d+)?)GB)?")


@dataclass(frozen=True)
class Resources:
    """The resources that an iteration may use.

    Attributes:
        cores: cores of the host.
        devices: number of accelerators; 0 if the cores do everything.
        memory: bytes of the host; None means no limit.
        device_memory: bytes of one accelerator; None means no limit.
        nodes: cores of each machine of a cluster; empty for a single machine.
    """

    cores: int
    devices: int = 0
    memory: float | None = None
    device_memory: float | None = None
    nodes: tuple[int, ...] = ()


def find_own_resources() -> Resources:
    """Return the cores that this process may use, and the machine's memory if the system reports it."""
    found = provenance.describe_hardware()
    memory = found.get("memory_gib")
    return Resources(int(found["cores"]), memory=None if memory is None else float(memory) * 2**30)


def parse_resources(text: str) -> Resources:
    """Parse resources such as `8xgpu`, `8xgpu:80GB`, `2xcore:16GB` or `8xgpu+64xcore`. A GB is 10⁹ bytes.

    Raises:
        UserError: the text does not follow this format.
    """
    parts = [_PART.fullmatch(part) for part in text.split("+")]
    counts = {part[2]: (int(part[1]), float(part[3]) * 1e9 if part[3] else None) for part in parts if part}
    if None in parts or len(counts) < len(parts) or 0 in [count for count, _ in counts.values()]:
        raise UserError(
            f"resources={text}: write <count>x<gpu or core> and, if it counts, the memory of each gpu or of the host, "
            "such as resources=8xgpu, resources=8xgpu:80GB+64xcore, or resources=2xcore:16GB",
            code="resources-invalid",
        )
    devices, device_memory = counts.get("gpu", (0, None))
    cores, memory = counts.get("core", (max(1, devices), None))
    return Resources(cores, devices, memory, device_memory)
