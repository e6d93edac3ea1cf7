"""CONTRIBUTING.md quotes the example, a logger and a scorer line by line, and the files that it names exist."""

import re

import pytest

from tests.support.example import EXAMPLE

ROOT = EXAMPLE.parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
SUFFIX = {"python": ".py", "toml": ".toml", "yaml": ".yaml"}
BLOCKS = re.findall(r"^```(python|toml|yaml)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def split_pieces(block: str) -> list[str]:
    """What stands between lines of three dots."""
    pieces = re.split(r"^ *\.\.\.\n", block, flags=re.MULTILINE)
    return [piece for piece in pieces if piece.strip()]


def holds(text: str, pieces: list[str]) -> bool:
    """Whether the pieces are whole lines of the text, one after another."""
    place, text = 0, f"\n{text}"
    for piece in pieces:
        found = text.find(f"\n{piece.rstrip()}\n", place)
        if found < 0:
            return False
        place = found + len(piece.rstrip())
    return True


@pytest.mark.parametrize(("language", "block"), BLOCKS, ids=[block.strip().split("\n")[0][:40] for _, block in BLOCKS])
def test_each_block_of_code_is_the_example_s(language: str, block: str) -> None:
    ours = [ROOT / "embodied_rl/judge/scorers/scripted.py", ROOT / "embodied_rl/runs/loggers/mlflow.py"]
    files = [*EXAMPLE.rglob(f"*{SUFFIX[language]}"), *ours]
    assert any(holds(path.read_text(), split_pieces(block)) for path in files), block


def test_each_part_of_the_example_is_shown() -> None:
    """Simulator, policy, algorithm, curriculum, their table and tests, and how they are found."""
    shown = "".join(block for _, block in BLOCKS)
    for part in ("(Rows):", "(FlowBackbone):", "class Reinforce:", "(Curriculum):", "SIMS = {", "check_simulator("):
        assert part in shown, part
    assert {language for language, _ in BLOCKS} == set(SUFFIX)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:src|tests|sims|policies|embodied_rl)/[\w/.]+)`", TEXT))))
def test_each_file_that_it_names_is_there(name: str) -> None:
    assert (ROOT / name).exists() or (EXAMPLE / name).exists()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([\w/.]+)\)", TEXT))))
def test_each_link_leads_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


def test_a_block_that_is_not_the_example_s_is_noticed() -> None:
    text = "a = 1\nb = 2\nc = 3\n"
    assert holds(text, split_pieces("a = 1\n...\nc = 3\n")) and holds(text, ["b = 2\n"])
    assert not holds(text, split_pieces("c = 3\n...\na = 1\n")), "in another order"
    assert not holds(text, ["b = 22\n"]) and not holds(text, ["b ="]), "part of a line"
