"""Warp's devices: choose one, and record work as a graph to repeat it there."""

from collections.abc import Callable
from functools import partial
from threading import Lock

import warp as wp

from embodied_rl.interfaces.sim import Unavailable

_RECORDING = Lock()  # Warp records only one graph at a time, in all threads together


def choose_device(name: str) -> str:
    """Return the device that `sim.device` selects. Raises `Unavailable`: the CUDA device does not exist."""
    wp.config.log_level = wp.LOG_ERROR if name == "cpu" else wp.LOG_WARNING  # hide warnings about an unused driver
    found = [device.alias for device in wp.get_cuda_devices()]
    wanted = {"auto": found[0] if found else "cpu", "cuda": "cuda:0"}.get(name, name)
    if wanted != "cpu" and wanted not in found:
        there = f"only {', '.join(found)}" if found else "no CUDA device"
        raise Unavailable(f"sim.device={name}: there is {there} here. Set sim.device={found[0] if found else 'cpu'}.")
    return wanted


def describe_device(device: str) -> str:
    """Return a device's name for messages."""
    return device if device == "cpu" else f"{device}, {wp.get_device(device).name}"


def record_graph(device: str, work: Callable[[], None]) -> Callable[[], None]:
    """Run `work` once to compile its kernels, and record it; return a function that repeats it without Python."""
    with _RECORDING, wp.ScopedDevice(device):
        work()
        with wp.ScopedCapture(device) as capture:
            work()
    return partial(wp.capture_launch, capture.graph)
