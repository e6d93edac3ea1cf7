"""The pages benchmark without a browser: what is missing is named, and violations are the exit message."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import pages
from tests.benchmarks.__main__ import main
from tests.support.refusals import refuses


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A command line whose files exist."""
    for name in ("page.html", "axe.js", "chromium"):
        (tmp_path / name).write_text("")
    files = (f"pages=[{tmp_path}/page.html]", f"axe={tmp_path}/axe.js", f"browser={tmp_path}/chromium")
    return ["pages", *files, f"out={tmp_path}"]


def test_playwright_is_named_where_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with refuses("package-missing"):
        pages.load_playwright()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["page.html", "axe.js", "chromium"])
def test_a_missing_file_is_named(name: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / name).unlink()
    with pytest.raises(SystemExit, match=f"{name} is not a file"):
        main(words)


@pytest.mark.thorough
@pytest.mark.parametrize(("counts", "message"), [([{}, {}], None), ([{"label": 2}, {"image-alt": 1}], "3 violations")])
def test_violations_are_written_and_end_in_a_message(
    counts: list[dict[str, int]], message: str | None, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*files: Any) -> dict[str, Any]:
        return {"pages": [{"violations": count} for count in counts]}

    monkeypatch.setattr(pages, "measure_pages", measure)
    if message is None:
        main(words)
    else:
        with pytest.raises(SystemExit, match=message):
            main(words)
    written = json.loads((tmp_path / "pages.json").read_text())
    assert [row["violations"] for row in written["pages"]] == counts and written["problem"] == message
