"""Settings of vla-eval's benchmarks. This module does not import vla-eval."""

from dataclasses import dataclass, field
from typing import Literal

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Code, CodeKeys


@dataclass(frozen=True)
class VlaEvalConfig:
    """Settings of a benchmark class of vla-eval."""

    benchmark: Code = "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark"
    """the class, as in vla-eval's own configurations: module:Class."""
    options: CodeKeys = field(default_factory=dict)
    """arguments of the class, such as {suite: libero_goal, send_state: true}."""
    render: Literal["cpu", "gpu"] = "cpu"
    """where it draws: vla-eval's `render`."""
    episodes: int = 50
    """numbered episodes of each task, vla-eval's `episodes_per_task`; at most those that the benchmark has."""
    horizon: int | None = None
    """control steps after which an episode is truncated; null for the benchmark's own `max_steps`."""
    control_hz: float = 20.0
    """control steps per simulated second, which vla-eval does not state."""
    reward: Literal["environment", "success"] = "success"
    """"environment": the benchmark's own; "success": 1 on the step that ends an episode in success."""

    def __post_init__(self) -> None:
        if not all(self.benchmark.partition(":")):
            raise UserError(f"sim.benchmark={self.benchmark}: give module:Class.", code="benchmark-class-invalid")
        if self.render not in ("cpu", "gpu") or self.reward not in ("environment", "success"):
            message = f"sim.render={self.render} sim.reward={self.reward}: cpu or gpu; environment or success."
            raise UserError(message, code="choice-unknown")
        for key, value in (("horizon", self.horizon), ("episodes", self.episodes)):
            if value is not None and value < 1:
                raise UserError(f"sim.{key}={value}: it must be at least 1.", code="value-out-of-range")
        if self.control_hz <= 0:
            raise UserError(f"sim.control_hz={self.control_hz}: it must be positive.", code="value-out-of-range")
