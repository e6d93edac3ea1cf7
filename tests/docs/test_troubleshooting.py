"""The codes of the troubleshooting page are those of errors."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_every_code_is_that_of_an_error() -> None:
    cells = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    codes = {code for cell in cells for code in re.findall(r"`([a-z-]+)`", cell)}
    sources = [file for part in ("embodied_rl", "sims", "policies") for file in (REPOSITORY / part).rglob("*.py")]
    known = {code for file in sources for code in re.findall(r'code="([a-z0-9-]+)"', file.read_text(encoding="utf-8"))}
    assert len(codes) > 30 and codes <= known, codes - known
