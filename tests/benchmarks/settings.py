"""Configuration of the benchmarks."""

from dataclasses import dataclass

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.trust import FilePath, Text
from embodied_rl.schema import BenchConfig


@dataclass(frozen=True)
class BenchmarkConfig(BenchConfig):
    device: Text = "cpu"
    """For `prefix_cache`: where the networks are; on a CUDA device they have their full size."""
    compiled: bool = False
    """For `prefix_cache`: also compile the denoise steps, which takes minutes."""
    ticks: int = at_least(1, 20_000)
    """For `fuzz`: ticks of the safety filter, and of the control core. A million of each takes 20 minutes of a core."""
    pages: tuple[FilePath, ...] = ()
    """For `pages`: HTML files."""
    axe: FilePath = "axe.min.js"
    """For `pages`: the file of axe-core."""
    browser: FilePath = "/usr/bin/chromium"
    """For `pages`: the program of Chromium."""
