"""The commands that record, recover and convert."""

import json
from pathlib import Path

import pytest

from embodied_rl.cli.main import main
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.sim import Source
from tests.support.recorded_robot import FakeRun, record_run


@pytest.fixture
def bag(tmp_path: Path, messages: Messages, monkeypatch: pytest.MonkeyPatch) -> Path:
    def run(fake: FakeRun) -> None:
        fake.run_episode(0, [Source.POLICY] * 3, lost=[1])
        fake.publish_text(fake.robot.operator.label, "success")

    record_run(tmp_path / "bag", messages, run)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "bag"


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["collect", "from=bag", "out=dataset", "images=png"], "meta/info.json"),
        (["convert", "bag", "out=dataset", "format=replay"], "format.json"),
    ],
)
def test_a_recording_is_converted(bag: Path, words: list[str], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    output = capsys.readouterr().out.splitlines()
    assert output == [
        "2 of 2 control steps kept: 2 by policy",
        "left out: steps that were not recorded (1)",
        "2 episodes in dataset",
    ]
    lines = [json.loads(line) for line in (bag.parent / "dataset" / "index.jsonl").read_text().splitlines()]
    assert [(line["first_step"], line["success"], line["seed"]) for line in lines] == [(0, False, 0), (2, True, 0)]
    assert (bag.parent / "dataset" / file).exists()
    assert main(words) == 2  # nothing is stored twice


def test_a_recording_without_usable_steps_makes_no_dataset(
    tmp_path: Path, messages: Messages, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lambda fake: fake.run_episode(0, [Source.POLICY] * 3, blind=range(3))  # noqa: E731
    record_run(tmp_path / "bag", messages, run)
    assert main(["convert", str(tmp_path / "bag"), f"out={tmp_path / 'dataset'}", "format=replay"]) == 2
    errors = capsys.readouterr().err
    assert "[recording-without-episodes]" in errors
    assert "steps without a message of /camera/front/image_raw (3)" in errors


def test_a_recording_truncated_before_its_first_step_is_refused(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = bag.glob("*.mcap")
    file.write_bytes(file.read_bytes()[:100])
    (bag / "metadata.yaml").unlink()
    assert main(["convert", "bag", "out=dataset"]) == 2
    output = capsys.readouterr().err
    assert "[recording-without-episodes]" in output and "bag" in output and file.name in output
    assert not (bag.parent / "dataset").exists()


def test_a_dry_run_lists_steps_and_topics(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "from=bag", "--dry-run"]) == 0
    assert "steps     2" in capsys.readouterr().out
    assert main(["record", "out=new", "--dry-run"]) == 0
    assert "/policy_bridge/steps" in capsys.readouterr().out
    assert not (bag.parent / "new").exists()


@pytest.mark.parametrize(
    ("words", "data", "code"),
    [
        (["collect", "from=absent"], "absent", "[recording-missing]"),
        (["collect", "from=bag", "episodes=3"], "'episodes'", "[key-unknown]"),
        (["record", "out=bag"], "bag", "[output-exists]"),
        (["record", "robot=absent"], "absent", ""),
        (["record", "recover=bag", "out=again"], "bag", "[recording-finished]"),
        (["convert", "bag", "robot=absent"], "absent", ""),
    ],
)
def test_mistakes_are_refused(
    bag: Path, words: list[str], data: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    output = capsys.readouterr().err
    assert data in output and code in output


def test_a_truncated_recording_is_recovered(bag: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bag / "metadata.yaml").unlink()
    assert main(["record", "recover=bag", "out=again"]) == 0
    assert "recovered to again" in capsys.readouterr().out
    assert main(["collect", "from=again", "out=dataset", "images=png"]) == 0
