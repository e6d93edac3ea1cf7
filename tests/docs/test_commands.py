"""Every command line that README and docs show is one that the program takes: command, keys, choices and types."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from embodied_rl.cli.command import list_commands
from embodied_rl.cli.main import main

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
PAGES = [page for page in PAGES if not page.name.startswith("tutorial_")]  # tests/docs/test_tutorials.py runs these
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STANDS_FOR = {  # what a reader replaces, and something in its place
    r"\[<run> …\]": "",
    r"<(yaml)>": "tabletop",
    r"<(name)>(?=\s|$)": "embedded",
    r"<[^<>]*>": "asset:tabletop_base.safetensors",
    r"\[(follow=true)\]": r"\1",
    r"\{[^{}]*…[^{}]*\}": "{}",
    r"(?<=[= ])(\w+://)?…": r"\1x",
}


def list_command_lines() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("embodied-rl "):
                    yield page.name, line


LINES = list(list_command_lines())


def fill(line: str) -> list[str]:
    """Return the words of a command line after `embodied-rl`, without its comment and with something for each <…>."""
    line = re.sub(r"\s#.*", "", line)
    for pattern, text in STANDS_FOR.items():
        line = re.sub(pattern, text, line)
    return [word for word in shlex.split(line)[1:] if word not in ("x", "--dry-run")]


def test_the_documentation_has_command_lines() -> None:
    assert len(LINES) > 120 and {page for page, _ in LINES} >= {"usage.md", "policies.md", "rewards.md", "replay.md"}


@pytest.mark.thorough
@pytest.mark.parametrize("line", [line for _, line in LINES], ids=[f"{page} {n}" for n, (page, _) in enumerate(LINES)])
def test_a_command_line_is_one_of_the_program(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = fill(line)
    names = [name for name in (" ".join(words[:2]), words[0]) if name in list_commands()]
    assert names, line
    if list_commands()[names[0]].schema is not None:
        assert main([*words, "--cfg", "job"]) == 0, (line, words, capfd.readouterr().err)
