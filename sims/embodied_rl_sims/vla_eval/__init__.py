"""Benchmarks of vla-eval. `VlaEval` is the class behind the name "vla_eval"."""

from embodied_rl_sims.vla_eval.settings import VlaEvalConfig
from embodied_rl_sims.vla_eval.simulator import VlaEval

__all__ = ["VlaEval", "VlaEvalConfig"]
