"""Strips in a run's report: few, small, and a stranger's words stay words."""

import json
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.reports.strips import (
    FOLDER,
    GROUPS,
    KEPT,
    Group,
    KeptStrip,
    Strip,
    StripFrame,
    choose_kept,
    describe_strips,
    draw_strips,
    encode_picture,
    make_strip_section,
    read_strips,
)
from tests.support.refusals import refuses

PICTURE = encode_picture(np.full((8, 8, 3), 90, np.uint8))
EVIL = '<script>alert("x")</script>&"\'>'


def strip(words: str = "pick up the red cube", note: str = "") -> Strip:
    frames = tuple(StripFrame(PICTURE, place, place / 2, None, 0.25, note) for place in range(3))
    return Strip(words, "", f"episode 3, failure, camera {words}", frames)


def kept(group: Group, rank: float, words: str = "pick up the red cube") -> KeptStrip:
    return KeptStrip(group, rank, strip(words))


def write(run: Path, name: str, strips: list[KeptStrip]) -> Path:
    (run / FOLDER).mkdir(parents=True, exist_ok=True)
    file = run / FOLDER / name
    file.write_text(json.dumps(describe_strips(strips)), encoding="utf-8")
    return file


def test_of_all_collectors_the_furthest_are_shown(tmp_path: Path) -> None:
    for number in range(3):
        own = [kept("failure_high", number / 10, f"high {number}"), kept("success_low", number / 10, f"low {number}")]
        write(tmp_path, f"last_{number}.json", own)
    assert read_strips(tmp_path / FOLDER / "last_2.json") == tuple(own)
    page = make_strip_section(tmp_path)
    assert page.count('class="strip"') == 2 * KEPT and make_strip_section(tmp_path / "other") == ""
    assert all(words in page for words in ("high 2", "high 1", "low 0", "low 1"))
    assert "high 0" not in page and "low 2" not in page
    assert page.index("high 2") < page.index("high 1") and page.index("low 0") < page.index("low 1")
    assert len(choose_kept([kept(group, 0.5) for group in GROUPS for _ in range(9)])) == KEPT * len(GROUPS)


def test_untrusted_text_is_escaped(tmp_path: Path) -> None:
    write(tmp_path, "last_0.json", [KeptStrip("failure_high", 0.5, strip(EVIL, EVIL))])
    page = make_strip_section(tmp_path)
    assert "alert" in page and "<script" not in page and EVIL not in page
    page = draw_strips([Strip("a", EVIL, "b", ())])
    assert "<script" not in page and "&lt;script" in page


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "http://example.org/x.png",
        'data:image/png;base64,AA"onerror="x',
        "data:text/html;base64,AA",
    ],
)
def test_other_addresses_than_pictures_are_refused(address: str, tmp_path: Path) -> None:
    with refuses("strip-damaged"):
        StripFrame(address, 0, 0.5)
    file = write(tmp_path, "last_0.json", [kept("failure_high", 0.5)])
    file.write_text(file.read_text().replace(PICTURE, json.dumps(address)[1:-1], 1))
    page = make_strip_section(tmp_path)
    assert "last_0.json" in page and "onerror" not in page and 'class="strip"' not in page


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "other"}'])
def test_a_damaged_file_is_named_and_the_report_goes_on(text: str, tmp_path: Path) -> None:
    write(tmp_path, "last_0.json", [kept("failure_high", 0.5, "a good one")])
    (tmp_path / FOLDER / "last_1.json").write_text(text)
    page = make_strip_section(tmp_path)
    assert "last_1.json" in page and "a good one" in page


@pytest.mark.parametrize(("shape", "kind"), [((16, 16, 3), "png"), ((480, 640, 3), "jpeg")])
def test_pictures_are_small(shape: tuple[int, int, int], kind: str) -> None:
    drawn = encode_picture(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    assert len(drawn) < 40_000 and drawn.startswith(f"data:image/{kind}")
