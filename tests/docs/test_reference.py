"""The generated reference lists every command with its keys, and every choice."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from embodied_rl import interfaces
from embodied_rl.cli.command import list_commands
from embodied_rl.cli.documentation import list_plugin_keys
from embodied_rl.cli.help import KINDS
from embodied_rl.config.freeze import list_key_paths
from embodied_rl.config.option_files import find_config_folder
from embodied_rl.config.plugins import list_plugins
from embodied_rl.schema import TrainConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"
INTERNAL = ("__init__", "description", "names", "observation_input", "spec_checks", "version")
"""Modules of the interfaces that plug-ins do not import."""


def load(name: str) -> Any:
    """A module of the site's own."""
    spec = spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    load("reference").write_pages(folder)
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_every_command_has_a_section_with_its_examples(pages: dict[str, str]) -> None:
    for name, command in list_commands().items():
        assert f"\n## {name}\n\n{command.summary}\n" in pages["commands"]
        for example in command.examples:
            assert f"embodied-rl {name} {example}".rstrip() + "\n" in pages["commands"]


def test_every_key_of_training_is_documented(pages: dict[str, str]) -> None:
    section = pages["commands"].split("\n## train\n")[1].split("\n## ")[0]
    rows = {line.split("`")[1]: line for line in section.splitlines() if line.startswith("| `")}
    paths = list_key_paths(TrainConfig)
    assert {path for path in paths if not any(other.startswith(f"{path}.") for other in paths)} <= set(rows)
    assert all(len(row.replace("\\|", "").split("|")) == 5 and row.split("|")[-2].strip() for row in rows.values())


def test_every_choice_is_listed_with_its_comment(pages: dict[str, str]) -> None:
    for path in find_config_folder().glob("*/*.yaml"):
        row = next(line for line in pages["choices"].splitlines() if line.startswith(f"| `{path.stem}` |"))
        assert len(row.split("|")[2]) > 10, row


def test_every_plugin_has_a_section_with_its_keys(pages: dict[str, str]) -> None:
    for node, kind in KINDS.items():
        for name, path in list_plugins(kind).items():
            section = pages["plugins"].split(f"\n## {node}.name={name}\n")[1].split("\n## ")[0]
            assert f"`{path}`" in section
            assert {f"`{key.name}`" for key in list_plugin_keys(path, node)} <= set(section.split())


def test_what_tutorials_import_is_in_the_python_reference() -> None:
    """Each module of the library that tutorials, the example plug-in and its tests import from."""
    sources = [*DOCS.glob("tutorial_*.md"), *(DOCS / "example_plugin").rglob("*.py")]
    text = "\n".join(source.read_text(encoding="utf-8") for source in sources)
    used = set(re.findall(r"^\s*from (embodied_rl(?:_sims)?(?:\.\w+)*) import", text, re.MULTILINE))
    used = used - {"embodied_rl.actors.learning"} | {"embodied_rl.actors.learning.sharded"}  # a module of that package
    listed = re.findall(r"^\.\. auto(\w+):: ([\w.]+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    known = {name if kind == "module" else name.rpartition(".")[0] for kind, name in listed}
    assert "embodied_rl.interfaces.backbone" in used and used <= known, used - known
    capabilities = {f"embodied_rl.interfaces.{path.stem}" for path in Path(interfaces.__file__).parent.glob("*.py")}
    assert capabilities - known == {f"embodied_rl.interfaces.{name}" for name in INTERNAL}


def test_what_the_theme_leaves_out_is_added_once() -> None:
    """For readers with a keyboard or a screen reader."""
    mend = load("accessibility").mend_page
    page = '<p class="caption" role="heading">Start</p><th class="head"><p></p></th><pre><span></span>make</pre>'
    mended = mend(page)
    assert mended == (
        '<p class="caption" role="heading" aria-level="2">Start</p><td class="head"></td>'
        '<pre tabindex="0"><span></span>make</pre>'
    )
    assert mend(mended) == mended
