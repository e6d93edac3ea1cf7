"""Wheels and sdists of source folders, and environments that have them, made without the network."""

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from importlib.metadata import distribution, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).parents[2]
ROBOT = CHECKOUT / "sims" / "embodied_rl_robot"
"""The project of the distribution for robots, on which the other one depends."""
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


def install(folder: Path, *packages: Path, only: Collection[str] | None = None) -> Path:
    """Install wheels, or checkouts as editable, in a new environment; returns its bin folder.

    What they require is not installed again: the environment sees the packages of the one that runs the tests.

    Args:
        folder: where the environment is made.
        packages: wheels, or folders of sources.
        only: names of the distributions that the environment sees; None: all.
    """
    environment = folder / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", environment], folder)
    (site,) = environment.glob("lib/python*/site-packages")
    if only is None:
        heavy = [path for path in sys.path if Path(path).name == "site-packages"]
        (site / "heavy.pth").write_text("\n".join(heavy))
    for name in only or ():
        link_distribution(name, site)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-build-isolation"]
    for package in packages:
        run([*pip, *(["--editable"] if package.is_dir() else []), package], folder)
    where = Path(run([python, "-c", "import embodied_rl; print(embodied_rl.__file__)"], folder).strip())
    assert where.is_relative_to(CHECKOUT if packages[0].is_dir() else site)
    return environment / "bin"


def list_requirements(name: str) -> set[str]:
    """The names of the distributions that a distribution needs, directly or not, without its extras."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for text in requires(waiting.pop()) or []:
            requirement = Requirement(text)
            known = canonicalize_name(requirement.name)
            if known not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                found.add(known)
                waiting.append(known)
    return found


def link_distribution(name: str, site: Path) -> None:
    """Link a distribution's packages and metadata of this environment into another one's site-packages."""
    found = distribution(name)
    tops = {file.parts[0] for file in found.files or [] if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        if not (site / top).exists():  # several distributions may share a folder
            (site / top).symlink_to(Path(str(found.locate_file(top))))
