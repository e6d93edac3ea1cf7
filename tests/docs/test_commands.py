"""Every command line that README and docs show is one that the program takes: command, keys, choices and types."""

import re
import shlex
from collections.abc import Iterator

import pytest

from embodied_rl.cli.command import list_commands
from embodied_rl.cli.main import main
from tests.support.pages import REPOSITORY, list_pages

PAGES = {"README.md": REPOSITORY / "README.md", **list_pages()}
PAGES = {name: page for name, page in PAGES.items() if not name.startswith("tutorial_")}  # test_tutorials.py runs these
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STANDS_FOR = {  # what a reader replaces, and something in its place
    r"\[<run> …\]": "",
    r"<(yaml)>": "tabletop",
    r"(?<=sim=)(<\w+>|…)": "tabletop",
    r"(?<=algo=)<name>": "ppo",
    r"(?<=policy=)…": "pi0",
    r"<(name)>(?=\s|$)": "embedded",
    r"<family>": "push",
    r"<delay>": "2",
    r"<[^<>]*>": "asset:tabletop_base.safetensors",
    r"\[(follow=true)\]": r"\1",
    r"\{[^{}]*…[^{}]*\}": "{}",
    r"(?<=[= ])(\w+://)?…": r"\1x",
}


INLINE = re.compile(r"(?<!`)`(embodied-rl [^`]+=[^`]+)`(?!`)")
SIDE = re.compile(r"^\| `(\w+)` \| `(.+?)`(?: \||, which)", re.MULTILINE)


def list_command_lines() -> Iterator[tuple[str, str]]:
    for name, page in PAGES.items():
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.findall(text):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("embodied-rl "):
                    yield name, line
        yield from ((name, " ".join(line.split())) for line in INLINE.findall(BLOCK.sub("", text)))


def list_ablations() -> dict[str, str]:
    """Return side → its command, of docs/ablations.md: that before its table, with the keys of its row."""
    found = {}
    for part in re.split(r"(?=`embodied-rl train)", (REPOSITORY / "docs/ablations.md").read_text(encoding="utf-8")):
        if command := INLINE.match(part):
            found |= {side: f"{command[1]} {keys}" for side, keys in SIDE.findall(part) if "<" not in keys}
    return found


LINES = [(page, line) for line, page in {line: page for page, line in list_command_lines()}.items()]  # each once


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


@pytest.mark.thorough
@pytest.mark.parametrize("side", list_ablations())
def test_a_side_of_an_ablation_can_be_run(side: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = fill(list_ablations()[side].replace("seed=0,1,2 -m", "seed=0"))
    words = [word.replace("replay.preload=asset:tabletop_base.safetensors", "replay.collect=true") for word in words]
    assert main([*words, "--dry-run"]) == 0, (side, words, capfd.readouterr().err)
