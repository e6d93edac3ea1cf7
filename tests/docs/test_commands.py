"""Every command line that pages show is one that the program takes: command, keys, choices and types.

Of other programs the targets, extras, files and marks exist, or the line says in a comment what it needs.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from embodied_rl.cli.command import find_command_name, list_commands, list_groups
from embodied_rl.cli.completion import complete_line
from embodied_rl.cli.documentation import list_schema_keys
from embodied_rl.cli.main import main
from embodied_rl.config import plugins
from tests.benchmarks.__main__ import configure
from tests.support.example import import_from, lay_out
from tests.support.pages import REPOSITORY, list_pages

FOLDERS = ("assets", "results", "sims/embodied_rl_robot", "docs/example_plugin")
READMES = ("README.md", "CONTRIBUTING.md", *(f"{folder}/README.md" for folder in FOLDERS))
PAGES = {name: REPOSITORY / name for name in READMES} | list_pages()
PAGES = {name: page for name, page in PAGES.items() if not name.startswith("tutorial_")}  # test_tutorials.py runs these
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DRAWING = "─"
FILE = "asset:tabletop_base.safetensors"
STANDS_FOR = {  # what a reader replaces, and something in its place
    r"\[<run> …\]": "",
    r"<(yaml)>": "tabletop",
    r"<command>": "train",
    r"<extra>": "ray",
    r"<file>\.json": "auto",
    r"(recipe=\S*libero\S*) --dry-run": r"\1",  # for which LIBERO has to be installed
    r"<group>": "sims",
    r"(?<=sim=)(<\w+>|…)": "tabletop",
    r"(?<=algo=)<name>": "ppo",
    r"(?<=benchmark=)<name>": "libero_spatial",
    r"(?<=policy=)…": "pi0",
    r"<(name)>(?=\s|$)": "embedded",
    r"<family>": "push",
    r"<d(elay)?>": "2",
    r"<rate>": "0.5",
    r"<split>": "vision",
    r"<html>": "report.html",
    r"<strategy>": "stop",
    r"(?<==)N\b": "2",
    r"<[^<>]*>": FILE,
    r"\[(follow=true)\]": r"\1",
    r"\{[^{}]*…[^{}]*\}": "{}",
    r"(?<=[= ])(\w+://)?…": r"\1x",
}
INLINE = re.compile(r"(?<!`)`((?:[A-Z_]+=|[a-z])[^`]* [^`]+)`(?!`)")
VARIABLES = re.compile(r"^(?:[A-Z_]+=\S+ )+")
SIDE = re.compile(r"^\| `(\w+)` \| `(.+?)`(?: \||, which)", re.MULTILINE)
OURS = {name.split()[0] for name in list_commands()}
PREFIXES = (
    "embodied-rl ", "torchrun ", "make ", "pip install 'embodied-rl", "pip install ./", "pip install docs/",
    "pytest ", "python -m pytest ", "python -m tests.", "python -m embodied_rl", "python docs/", "python tests/",
)  # fmt: skip
"""What an inline command begins with, but for those of ours that are written without `embodied-rl`."""
CALLS = re.compile(r"""^(?:torchrun .* -m embodied_rl|eval "\$\(embodied-rl) (.*?)(?:\)")?(?=\s+#|$)""")
NOT_RUN = {  # programs in blocks, and why their lines are not tried
    ".ci/run": "runs the tests",
    "pre-commit": "changes the clone",
    "export": "sets variables, as test_tutorials.py does",
}


def list_command_lines() -> Iterator[tuple[str, str]]:
    for name, page in PAGES.items():
        text = page.read_text(encoding="utf-8")
        for language, block in BLOCK.findall(text):
            if language in ("", "bash", "console") and DRAWING not in block:
                yield from ((name, CALLS.sub(r"embodied-rl \1", line)) for line in split_lines(block))
        for found in (" ".join(VARIABLES.sub("", line).split()) for line in INLINE.findall(BLOCK.sub("", text))):
            if found.removeprefix("embodied-rl ") in list_commands():
                yield name, f"embodied-rl {found.removeprefix('embodied-rl ')} --help"
            elif found.split()[0] in OURS and found != "import torch":
                yield name, f"embodied-rl {found}" + " …" * (found[-1] != "=")
            elif found.startswith(PREFIXES):
                yield name, CALLS.sub(r"embodied-rl \1", found)
    for name, command in list_commands().items():
        yield from (("the reference", f"embodied-rl {name} {example}".strip()) for example in command.examples)


def split_lines(block: str) -> list[str]:
    return [line for line in block.replace("\\\n", " ").splitlines() if line]


def list_ablations() -> dict[str, str]:
    """Return side → its command, of docs/ablations.md: that before its table, with the keys of its row."""
    found = {}
    for part in re.split(r"(?=`embodied-rl train)", (REPOSITORY / "docs/ablations.md").read_text(encoding="utf-8")):
        if command := INLINE.match(part):
            found |= {side: f"{command[1]} {keys}" for side, keys in SIDE.findall(part) if "<" not in keys}
    return found


LINES = [(page, line) for line, page in {line: page for page, line in list_command_lines()}.items()]  # each once


def fill(line: str) -> list[str]:
    """Return the words of a command line, without its comment and with something for each <…>."""
    line = re.sub(r"\s#.*", "", line)
    for pattern, text in STANDS_FOR.items():
        line = re.sub(pattern, text, line)
    return [word for word in shlex.split(line) if word != "x"]


def test_the_documentation_has_command_lines() -> None:
    assert len(LINES) > 400 and {page for page, _ in LINES} >= {"the reference", *READMES, "hardware.md", "replay.md"}


@pytest.fixture
def _folder(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new folder, with the example plug-in installed for pages about it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(REPOSITORY / "docs")
    if page in ("CONTRIBUTING.md", "docs/example_plugin/README.md"):
        import_from(lay_out(tmp_path / "example"), monkeypatch)
    yield
    plugins.list_plugins.cache_clear()


@pytest.mark.thorough
@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize(("page", "line"), LINES, ids=[f"{page} {n}" for n, (page, _) in enumerate(LINES)])
def test_a_command_line_can_be_typed(
    page: str, line: str, pytestconfig: pytest.Config, capfd: pytest.CaptureFixture[str]
) -> None:
    program, *words = fill(line)
    program = program.removeprefix(".venv/bin/")
    if program == "embodied-rl":
        more = re.search(r"(?<!>) …", line.partition("#")[0]) is not None
        assert try_command(words, more) == 0, (line, words, capfd.readouterr().err)
    elif program == "pytest" or words[:2] == ["-m", "pytest"]:
        check_pytest(words, pytestconfig)
    elif not check_program(program, words):
        assert program in NOT_RUN or re.search(r"# needs ", line), f"say what it needs in a comment, # needs …: {line}"


def try_command(words: list[str], more: bool) -> int:
    """Do what the words say where this takes no time, or else compose its configuration; the reader may add more."""
    if not words or words[0].startswith("-") or (words[0] in list_groups() and len(words) == 1):
        return main(words)
    name, rest = find_command_name(words)
    schema = list_commands()[name].schema
    if rest and rest[-1].endswith("="):  # a key alone
        return 0 if rest[-1] in complete_line(" ".join(["embodied-rl", name, *rest])[:-1]) else 1
    if schema is None or {"--help", "--help-all", "--dry-run"} & {*rest} or any("costs=docs/" in word for word in rest):
        return main(words)
    if more and list_commands()[name].config is None:  # then the keys that the command requires are the reader's
        required = (key.name for key in list_schema_keys(schema) if key.default == "required")
        words = [*words, *(f"{key}={FILE}" for key in required if not any(word.startswith(f"{key}=") for word in rest))]
    return main([*words, "--cfg", "job"])


def check_program(program: str, words: list[str]) -> bool:
    """Check what a line of another program names; return whether it is one whose lines are checked."""
    match [program, *words]:
        case ["make", target, *_]:
            assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        case ["pip", "install", package] if extras := re.fullmatch(r"embodied-rl\[(.*)\]", package):
            project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
            assert {*extras[1].split(",")} <= {*project["optional-dependencies"]}
        case ["pip", "install", folder] if "/" in folder:
            assert (REPOSITORY / folder / "pyproject.toml").is_file()
        case ["python", "-m", "tests.benchmarks", *typed]:
            assert not typed or configure(typed)
        case ["python", "-m", module, *_]:
            assert find_spec(module)
        case ["python", file, *_]:
            assert (REPOSITORY / file).is_file()
        case _:
            return False
    return True


def check_pytest(words: list[str], config: pytest.Config) -> None:
    """Check that files, options, words of -k and marks of a line of pytest exist."""
    paths = [REPOSITORY / word for word in words if "/" in word]
    assert all(path.exists() for path in paths)
    for word in words:
        if word.startswith("--"):
            config.getoption(word)  # raises ValueError
    chosen = {after for word, after in pairwise(words) if word == "-k"}
    text = "".join(file.read_text() for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]))
    assert all(word in text for each in chosen for word in re.findall(r"\w+", each) if word not in ("and", "or", "not"))
    marks = " ".join(after for word, after in pairwise(words) if word == "-m" and after != "pytest")
    known = {re.split(r"\W", line)[0] for line in config.getini("markers")}
    assert {*re.findall(r"\w+", marks)} <= {*known, "not", "and", "or"}


@pytest.mark.thorough
@pytest.mark.parametrize("side", list_ablations())
def test_a_side_of_an_ablation_can_be_run(side: str, capfd: pytest.CaptureFixture[str]) -> None:
    _, *words = fill(list_ablations()[side].replace("seed=0,1,2 -m", "seed=0"))
    words = [word.replace("replay.preload=asset:tabletop_base.safetensors", "replay.collect=true") for word in words]
    assert main([*words, "--dry-run"]) == 0, (side, words, capfd.readouterr().err)
