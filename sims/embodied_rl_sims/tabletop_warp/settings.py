"""Settings of the tabletop on `mujoco_warp`. This module imports neither `mujoco_warp` nor Warp."""

import re
from dataclasses import dataclass

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Text
from embodied_rl_sims.tabletop.settings import TabletopConfig


@dataclass(frozen=True)
class TabletopWarpConfig(TabletopConfig):
    """Settings of the tabletop, and its device."""

    device: Text = "auto"
    """"auto" (the first CUDA device if one exists, else the processor), "cpu", or a CUDA device such as "cuda" or
    "cuda:1"."""
    deterministic: bool = True
    """on a CUDA device, sum in a fixed order, so that equal seeds give equal bits; False is faster. On the processor
    they always do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise UserError(f"sim.device={self.device}: it is auto, cpu, cuda or cuda:<number>.", code="device-unknown")
