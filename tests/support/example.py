"""The example distribution of docs/, importable without being built."""

import tomllib
from pathlib import Path

import pytest

from embodied_rl.config import plugins

EXAMPLE = Path(__file__).parents[2] / "docs" / "example_plugin"


def lay_out(site: Path) -> list[str]:
    """Write what an installation would say of the distribution into `site`; return the folders to import from."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = site / f"embodied_rl_example-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in found.items()) for group, found in groups
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return [str(site), str(EXAMPLE / "src")]


def import_from(folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process, and those that it starts, import from folders; the caller clears the plug-ins' cache."""
    for folder in folders:
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", folder, prepend=":")
    plugins.list_plugins.cache_clear()
