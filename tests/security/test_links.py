"""A stranger's run or evaluation that is continued: nothing is written through its links, and no pipe is waited for."""

import os
import pickle
import shutil
from collections.abc import Callable

import pytest

from embodied_rl.evaluate.resumption import ResultFile, choose_output_folder
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.lock import hold_run
from embodied_rl.schema import EvalConfig
from embodied_rl.system.atomic_write import write_text
from tests.security.test_trust import write_run
from tests.support import strangers
from tests.support.planting import Plant

pytestmark = pytest.mark.thorough
Typed = Callable[..., tuple[int, str]]
FOLDERS = ("tensorboard", "timelines", "videos", "eval", "eval/after", "checkpoints", "scores", "scores/strips")


@pytest.mark.parametrize("name", [*FOLDERS, "report.json", "scores/0.jsonl", "timelines/00000001.json"])
def test_a_run_is_not_continued_through_a_link(plant: Plant, name: str) -> None:
    run = write_run(plant.sent / "run")
    place = run / name
    place.parent.mkdir(exist_ok=True)
    if place.is_dir():
        place.rmdir()
    place.symlink_to(plant.outside / ("secret.json" if place.suffix else ""))
    plant.watch()
    with pytest.raises(UserError, match=f"{place} is a link to {plant.outside}"), hold_run(run):
        pass
    assert plant.find_harm() == []


def test_a_link_within_a_run_is_followed(plant: Plant) -> None:
    run = write_run(plant.sent / "run")
    (run / "newest").symlink_to("checkpoints")
    with hold_run(run):
        pass


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_lock_that_is_no_file(plant: Plant, typed: Typed, kind: str) -> None:
    run = write_run(plant.sent / "run")
    os.mkfifo(run / "run.lock") if kind == "pipe" else (run / "run.lock").mkdir()
    code, said = typed("train", f"resume={run}")
    assert code == 2 and str(run / "run.lock") in said and "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_an_evaluation_is_not_put_behind_a_link(plant: Plant) -> None:
    run = write_run(plant.sent / "run")
    (run / "eval").rmdir()
    (run / "eval").symlink_to(plant.outside)
    with pytest.raises(UserError, match=f"{run / 'eval'} is a link"):
        choose_output_folder(EvalConfig(policy="random"), RunFolder(run))
    assert [file.name for file in plant.outside.iterdir()] == ["secret.json"]


def test_an_evaluation_is_not_continued_through_a_link(plant: Plant) -> None:
    (plant.sent / "videos").symlink_to(plant.outside)
    with pytest.raises(UserError, match=f"{plant.sent / 'videos'} is a link"):
        ResultFile(plant.sent / "episodes.jsonl", ())


def test_a_file_is_replaced_beside_a_link_of_its_temporary_name(plant: Plant) -> None:
    """The names of files that are not finished hold the number of the process, which may be guessed."""
    for name in (f".tmp-report.json-{os.getpid()}", f".tmp-mode-.tmp-report.json-{os.getpid()}-{os.getpid()}"):
        (plant.sent / name).symlink_to(plant.outside / f"new {len(name)}")
    (plant.sent / f".tmp-report.json-{os.getpid()}").unlink()
    (plant.sent / f".tmp-report.json-{os.getpid()}").symlink_to(plant.outside / "secret.json")
    plant.watch()
    write_text(plant.sent / "report.json", "mine")
    assert plant.find_harm() == [] and (plant.sent / "report.json").read_text() == "mine"


@pytest.mark.parametrize("content", [pickle.dumps([1]), pickle.dumps("a\nb"), b"PK\x03\x04x", b"", b"[1]\n", b"\n"])
def test_a_log_of_scores_that_is_none(plant: Plant, typed: Typed, content: bytes) -> None:
    file = plant.sent / "scores.jsonl"
    file.write_bytes(content)
    code, said = typed("train", "sim=tabletop", "reward=replay", f"reward.log={file}", "plan=colocated", "--dry-run")
    assert code == 2 and str(file) in said and len(said.strip().splitlines()) == 1, said
    assert ("pickle" in said) == content.startswith((b"\x80", b"PK")), said


READ = {
    "inspect": ("inspect", "{}"),
    "eval": ("eval", "policy={}", "--dry-run"),
    "serve": ("serve", "policy={}", "--dry-run"),
    "follow": ("serve", "policy={}", "follow=true", "--dry-run"),
    "export": ("export", "checkpoint={}", "out=exported"),
    "train": ("train", "policy.checkpoint={}", "sim=tabletop", "plan=colocated", "plan.ranks=1", "--dry-run"),
    "resume": ("train", "resume={}", "--dry-run"),
    "newest": ("train", "resume=last", "run.root=../sent", "--dry-run"),
    "compare": ("compare", "{}", "{}"),
    "trace": ("trace", "{}"),
    "figures": ("figures", "{}", "results=../results"),
}
PARTS = {
    "config.yaml": ("eval", "resume", "newest"),
    "checkpoints": ("inspect", "eval", "serve", "follow", "export", "train", "resume"),
    "checkpoints/last": ("inspect", "eval", "serve", "follow", "export", "train"),
    "checkpoints/best": ("inspect", "eval", "serve", "export", "train"),
    "checkpoints/00000001/policy.safetensors": ("inspect", "eval", "serve", "follow", "export", "train", "resume"),
    "checkpoints/00000001": ("inspect", "eval", "serve", "follow", "export", "train", "resume"),
    "timelines": ("trace",),
    "timelines/00000001.json": ("trace",),
    "report.json": ("compare", "figures"),
    "provenance.json": ("newest", "figures"),
}
READS = [(part, command) for part, commands in PARTS.items() for command in commands]


@pytest.mark.parametrize(("part", "command"), READS, ids=[f"{part} × {command}" for part, command in READS])
def test_a_run_is_not_read_through_a_link(plant: Plant, typed: Typed, part: str, command: str) -> None:
    """What lies outside would do, so that only the link is a reason to refuse."""
    run = strangers.run(plant.sent)
    (run / "provenance.json").write_text('{"started": "2026-01-01T00:00:00+00:00"}')
    if part != "checkpoints/last":
        shutil.copy(run / "checkpoints" / "last", run / "checkpoints" / "best")
    if command == "newest":
        (run / "config.yaml").write_text("train: {}\n")
    moved = (run / part).rename(plant.outside / part.rpartition("/")[2])
    (run / part).symlink_to(moved)
    plant.watch(reads=True)
    code, said = typed(*(word.replace("{}", str(run)) for word in READ[command]))
    assert plant.find_harm() == []
    assert code == 2 and len(said.strip().splitlines()) == 1 and said.startswith("embodied-rl: "), said
    assert f"{run.name}/{part}" in said and f" is a link to {moved}" in said, said


@pytest.mark.parametrize("part", ["config.yaml", "checkpoints", "checkpoints/best", "timelines"])
def test_a_run_is_read_through_a_link_within_it(plant: Plant, typed: Typed, part: str) -> None:
    run = strangers.run(plant.sent)
    shutil.copy(run / "checkpoints" / "last", run / "checkpoints" / "best")
    moved = (run / part).rename(run / "moved")
    (run / part).symlink_to(moved)
    for command in ("inspect", "eval", "trace"):
        code, said = typed(*(word.replace("{}", str(run)) for word in READ[command]))
        assert code == 0, said


def test_the_configuration_of_the_newest_run_is_no_pipe(plant: Plant, typed: Typed) -> None:
    run = strangers.run(plant.sent)
    (run / "config.yaml").unlink()
    os.mkfifo(run / "config.yaml")
    code, said = typed(*READ["newest"])
    assert code == 2 and f"{run.name}/config.yaml is a pipe" in said, said
