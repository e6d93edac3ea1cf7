"""The benchmarks' runner: configuration, results file, and mistakes."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from tests.benchmarks import transport
from tests.benchmarks.__main__ import NAMES, main


@pytest.mark.thorough
@pytest.mark.process
def test_figures_are_written_with_the_hardware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LOADS", (transport.Load(2, 1, 8),))
    main(["transport", f"out={tmp_path / 'out'}"])
    written = json.loads((tmp_path / "out" / "transport.json").read_text())
    assert [each["load"]["envs"] for each in written["loads"]] == [2] and written["hardware"]["cores"] >= 1


@pytest.mark.thorough
def test_every_name_is_a_benchmark() -> None:
    files = {path.stem for path in Path(__file__).parent.glob("*.py")}
    others = {"libero_speed", "maniskill_speed", "networks", "roofline", "settings", "sleeping_stages"}
    assert set(NAMES) == {name for name in files - others if not name.startswith(("test_", "__"))}
    assert all(callable(import_module(f"tests.benchmarks.{name}").run) for name in NAMES)


@pytest.mark.parametrize("words", [[], ["nonsense"], ["transport", "secnds=3"]])
def test_a_mistake_ends_with_a_message(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert isinstance(end.value.code, str)
