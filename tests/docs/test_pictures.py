"""The drawn pictures of the documentation are complete, and each is on a page."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.pages import DOCS, REPOSITORY, list_pages

PICTURES = sorted((DOCS / "figures" / "concepts").glob("*.svg"))


def test_there_are_pictures() -> None:
    assert len(PICTURES) >= 5


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_describes_itself_and_contains_all_it_shows(picture: Path) -> None:
    root = ElementTree.parse(picture).getroot()
    names = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert names[1:3] == ["title", "desc"] and all((root[number].text or "").strip() for number in (0, 1))
    assert not {"script", "image", "foreignObject"} & set(names)
    attributes = [item for element in root.iter() for item in element.items()]
    assert not [name for name, _ in attributes if name.startswith("on")]
    links = [value for name, value in attributes if name.rpartition("}")[2] == "href"]
    links += re.findall(r"url\(([^)]*)\)", picture.read_text(encoding="utf-8"))
    assert all(link.startswith("#") for link in links) and "@import" not in picture.read_text(encoding="utf-8")


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_page_shows_the_picture_with_a_text_in_its_place(picture: Path) -> None:
    shown = [
        (page.parent / path).resolve()
        for page in [REPOSITORY / "README.md", *list_pages().values()]
        for path in re.findall(r"!\[[^\]]{20,}\]\(([^)]+\.svg)\)", page.read_text(encoding="utf-8"))
    ]
    assert picture in shown
