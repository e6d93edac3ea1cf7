"""Warp's devices: which one is meant, and work recorded once and repeated there."""

from collections.abc import Callable
from functools import partial
from threading import Lock

import warp as wp

from embodied_rl.interfaces.sim import Unavailable

_RECORDING = Lock()  # Warp records one graph at a time, whatever the thread


def choose_device(name: str) -> str:
    """The device that `sim.device` means.

    Raises:
        Unavailable: there is no such CUDA device.
    """
    wp.config.log_level = wp.LOG_ERROR if name == "cpu" else wp.LOG_WARNING  # of a driver that nobody asked for
    found = [device.alias for device in wp.get_cuda_devices()]
    wanted = {"auto": found[0] if found else "cpu", "cuda": "cuda:0"}.get(name, name)
    if wanted != "cpu" and wanted not in found:
        there = f"only {', '.join(found)}" if found else "no CUDA device"
        raise Unavailable(f"sim.device={name}: there is {there} here. Set sim.device={found[0] if found else 'cpu'}.")
    return wanted


def describe_device(device: str) -> str:
    """A device, in words."""
    return device if device == "cpu" else f"{device}, {wp.get_device(device).name}"


def record_graph(device: str, work: Callable[[], None]) -> Callable[[], None]:
    """Do `work` once, which compiles its kernels, and record it: the result repeats it without Python in between."""
    with _RECORDING, wp.ScopedDevice(device):
        work()
        with wp.ScopedCapture(device) as capture:
            work()
    return partial(wp.capture_launch, capture.graph)
