"""Files that GitHub reads: CITATION.cff (Citation File Format 1.2.0) and the forms of issues."""

import tomllib
from pathlib import Path

import pytest
import yaml

from embodied_rl import __version__
from tests.support.pages import REPOSITORY

FORMS = sorted((REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_the_citation_has_the_required_keys_and_this_version() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys() and citation["cff-version"] == "1.2.0"
    assert all(author.get("name") or author.get("family-names") for author in citation["authors"])
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert citation["version"] == __version__ and citation["license"] == project["license"]


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_the_form_of_an_issue_has_the_required_keys(file: Path) -> None:
    form = yaml.safe_load(file.read_text())
    assert form["name"] and form["description"]
    labels = [field["attributes"]["label"] for field in form["body"]]
    assert labels and len(set(labels)) == len(labels) and all(isinstance(label, str) for label in labels)
    assert {field["type"] for field in form["body"]} <= {"input", "textarea"}
    required = [field["validations"]["required"] for field in form["body"] if "validations" in field]
    assert any(required) and {*required} <= {True, False}
    assert not [field for field in form["body"] if field["type"] == "input" and "render" in field["attributes"]]


def test_both_forms_are_found() -> None:
    assert [file.name for file in FORMS] == ["bug.yml", "result.yml"]
