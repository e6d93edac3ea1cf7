"""Simulators of another Python environment, and such environments: made in a second, without the network."""

import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array, Observation, Unavailable
from embodied_rl.runtime.processes.interpreter import find_folder_of
from embodied_rl.testing.fake_simulator import FakeSimulator


def environment(folder: Path, packages: tuple[str, ...] = ("numpy", "numpy.libs")) -> Path:
    """A virtual environment that holds nothing but the named packages of this one; returns its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    ours = Path(sysconfig.get_path("purelib"))
    theirs = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for package in packages:
        if (ours / package).exists():
            (theirs / package).symlink_to(ours / package)
    return folder / "bin" / "python"


class Nosy(FakeSimulator):
    """Tells what it can import, operates itself to the right, and draws its rows."""

    def imports(self, name: str) -> bool:
        try:
            __import__(name)
        except ImportError:
            return False
        return True

    def path(self) -> list[str]:
        return sys.path

    def render(self, row: int, width: int, height: int) -> Array:
        return np.full((height, width, 3), row, np.uint8)

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        calls = []

        def act() -> Array:
            calls.append(1)
            return self._direction()[:, None].repeat(2, 1) * (0 if faulty else 1) + len(calls) * 0.0

        return act


class Tensor:
    """What a simulator on an accelerator hands out in place of an array."""

    def __init__(self, array: Array):
        self._array = array

    def cpu(self) -> Array:
        return self._array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: Any) -> "Tensor":
        return Tensor(self._array[rows])


class OnDevice(FakeSimulator):
    """Leaves its observations on an accelerator."""

    def __init__(self, num_envs: int):
        super().__init__(num_envs)
        self.spec = replace(self.spec, device="cuda")

    def _observe(self) -> Observation:
        shown = super()._observe()
        images = {name: Tensor(image) for name, image in shown.images.items()}
        return replace(shown, images=images, state=Tensor(shown.state), privileged=Tensor(shown.privileged))


class NeedsPackage(FakeSimulator):
    def __init__(self, num_envs: int):
        import no_such_simulator  # noqa: F401


class NeedsAsset(FakeSimulator):
    def __init__(self, num_envs: int):
        raise Unavailable("the bowl is missing; get it with: wash dishes")


class Asks(FakeSimulator):
    def __init__(self, num_envs: int):
        input("Download 3 GB? [y/n]")


class Refuses(FakeSimulator):
    """Is refused by a module of ours what it asks for, or stumbles by itself."""

    def __init__(self, num_envs: int, stumble: bool):
        int("four") if stumble else find_folder_of("no_such_package")
