"""Wheels and sdists of source folders, and environments that have them, made without the network."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
OFFLINE = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}


def run(arguments: Sequence[str | Path], folder: Path, timeout: float = 240) -> str:
    """Run a program without the network and without our own paths; returns what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(item) for item in arguments],
        cwd=folder,
        env={**kept, **OFFLINE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """The wheel or sdist of a source folder."""
    run([sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", folder, source], folder)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def install(folder: Path, package: Path, *others: Path) -> Path:
    """Install wheels, or a checkout as editable, in a new environment; returns its bin folder.

    The heavy packages are not installed again: the environment sees those of the one that runs the tests.
    """
    environment = folder / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", environment], folder)
    (packages,) = environment.glob("lib/python*/site-packages")
    heavy = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "heavy.pth").write_text("\n".join(heavy))
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, *(["--editable"] if package.is_dir() else []), package, *others], folder)
    where = Path(run([python, "-c", "import embodied_rl; print(embodied_rl.__file__)"], folder).strip())
    assert where.is_relative_to(package if package.is_dir() else packages)
    return environment / "bin"
