"""The messages that the troubleshooting page quotes are those of the program."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from embodied_rl.cli.main import main
from tests.support.pages import DOCS, REPOSITORY

PAGE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
QUOTES = dict(re.findall(r"`\[([a-z-]+)\] ([^`]+)`", PAGE))
CUT = "…"

COMMANDS = {  # code of an error → a command that ends with it
    "key-unknown": "train sim.num_env=4",
    "choice-unknown": "train algo=pppo",
    "value-unknown": "train train.time_limit=never",
    "key-unused": "train staleness=1",
    "keys-contradict": "doctor sim=tabletop robot=tabletop",
    "environments-not-divisible": "train experiment=demo sim.num_envs=7 plan=colocated plan.ranks=2",
    "envs-not-divisible": "train experiment=tabletop algo=grpo sim.num_envs=10 algo.group_size=4",
    "device-missing": "train experiment=demo policy.device=cuda",
    "checkpoint-is-pickle": "inspect net",
    "camera-size-mismatch": "train experiment=demo sim.image_size=32",
    "weights-random": "train policy=pi0",
    "policy-not-trained-for-delay": "eval asset:tabletop_base.safetensors delay=2 strategy=prefix",
    "output-exists": "export asset:tabletop_base.safetensors format=lerobot out=full",
}

LONG = {"camera-size-mismatch", "weights-random"}
"""They build a simulator, or import transformers."""

Template = tuple[str | None, ...]
"""A message in the source: its text, with None for each part that the program fills in."""


@cache
def list_templates() -> dict[str, list[Template]]:
    """Return code → the templates of the errors with it, of the codes whose messages no command here prints."""
    found: dict[str, list[Template]] = {code: [] for code in QUOTES.keys() - COMMANDS.keys()}
    for file in (path for part in ("embodied_rl", "sims", "policies") for path in (REPOSITORY / part).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not found.keys() & set(re.findall(r'code="([a-z-]+)"', text)):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        assigned = sorted((node for node in nodes if isinstance(node, ast.Assign)), key=lambda node: node.lineno)
        for call in (node for node in nodes if isinstance(node, ast.Call) and node.args):
            code = next((ast.unparse(each.value)[1:-1] for each in call.keywords if each.arg == "code"), "")
            if code in found:
                known = {ast.unparse(each.targets[0]): each.value for each in assigned if each.lineno < call.lineno}
                found[code].append(tuple(split(call.args[0], known)))
    return found


def split(node: ast.expr, known: dict[str, ast.expr]) -> Iterator[str | None]:
    """Yield the parts of the template of an expression; a name stands for what was assigned to it last."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            for part in parts:
                yield from split(part, known)
        case ast.Name(id=name) if isinstance(known.get(name), ast.Constant | ast.JoinedStr):
            yield from split(known[name], {})
        case ast.FormattedValue(value=ast.Name() as value):
            yield from split(value, known)
        case ast.BoolOp(values=[*_, last]):
            yield from split(last, known)
        case _:
            yield None


def fits(quote: str, template: Template) -> bool:
    """Return whether a quote is what a template can become, or where it is cut, the begin of that."""
    text, pattern = quote.removesuffix(CUT).rstrip(), ""
    if sum(len(part) for part in template if part) < 15:
        return False
    for part in template:
        if part is not None and quote.endswith(CUT):
            ends = (end.end() for end in re.finditer(re.escape(text[-4:]), part))
            if any(re.fullmatch(pattern + re.escape(part[:end]), text) for end in ends):
                return True
        pattern += ".+" if part is None else re.escape(part)
    return quote == text and re.fullmatch(pattern, quote) is not None


def test_every_entry_quotes_messages_on_one_line_and_cuts_them_only_at_the_end() -> None:
    rows = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) > 25 and len(QUOTES) > 35 and QUOTES.keys() >= COMMANDS.keys()
    for row in rows:
        assert re.fullmatch(r"\| (`\[[a-z-]+\] [^`…]+…?`(<br>)?)+", row), row


@pytest.mark.parametrize(
    "code", [pytest.param(code, marks=[pytest.mark.thorough] * (code in LONG)) for code in sorted(COMMANDS)]
)
def test_a_command_prints_the_quoted_message(
    code: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("net/pytorch_model.bin", "full/file"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("no weights")
    assert main(COMMANDS[code].split()) == 2
    printed, quote = capfd.readouterr().err.splitlines()[-1], f"embodied-rl: [{code}] {QUOTES[code]}"
    assert printed == quote or (quote.endswith(CUT) and printed.startswith(quote.removesuffix(CUT))), printed


@pytest.mark.parametrize("code", sorted(QUOTES.keys() - COMMANDS.keys()))
def test_the_source_has_the_quoted_message(code: str) -> None:
    templates = list_templates()[code]
    assert any(fits(QUOTES[code], template) for template in templates), (QUOTES[code], templates)
