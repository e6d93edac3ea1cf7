"""An evaluation that ended early is continued to the report that it would have had, or refused."""

import json
import signal
import time
from pathlib import Path

import pytest

from embodied_rl.cli.main import main
from embodied_rl.commands import eval as command
from embodied_rl.evaluate import metadata, resumption
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.runs import provenance
from embodied_rl.schema import BenchmarkNode, BenchmarkPart, EvalConfig, Plan, SimChange, Video
from tests.support.refusals import refuses
from tests.support.running import DEADLINE, Process, started

DEEP = '{"a":' * 100_000
PARTS = (BenchmarkPart({"name": "clock"}, seeds=3), BenchmarkPart({"name": "clock"}, seeds=2, split="vision"))
CASES = {
    "a checkpoint": {},
    "random actions": {"policy": "random", "checkpoint": None, "sim": SimChange("clock")},
    "a part of a benchmark": {"benchmark": BenchmarkNode("home", "a book", PARTS), "episodes": 17},
    "other instructions": {"ablate": "instruction"},
    "a delay": {"delay": 2, "strategy": "stop", "hold": (0.0, 0.0)},
    "episodes to publish": {"episodes_for": "publish"},
    "a policy for each task": {
        "checkpoint": None,
        "policies": {"pick": "a.safetensors", "open": "b.safetensors"},
        "benchmark": BenchmarkNode("home", "a book", PARTS),
        "episodes": None,
    },
}


def settings(out: Path, **changes) -> EvalConfig:
    usual = {"checkpoint": "policy.safetensors", "episodes": 20, "video": Video(0, 0, 0), "plan": Plan(ranks=2)}
    return EvalConfig(**{**usual, "out": str(out), **changes})


def interrupt_after(episodes: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let the results of so many episodes be written, and no more."""
    add = command.ResultFile.add

    def write(self, result) -> None:
        if len(self.found) == episodes:
            raise error
        add(self, result)

    monkeypatch.setattr(command.ResultFile, "add", write)


def read(folder: Path) -> dict:
    """The report, without what the clock and the place decide."""
    content = json.loads((folder / "report.json").read_text())
    of_the_clock = ("started", "finished", "seconds", "load", "load_at_end", "command")
    return content | {"metadata": {k: v for k, v in content["metadata"].items() if k not in of_the_clock}}


@pytest.fixture
def cut(kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an evaluation that ended after 9 of 20 episodes."""
    with monkeypatch.context() as patch:
        interrupt_after(9, patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            command.run(settings(tmp_path / "cut"))
    return tmp_path / "cut"


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("after", [0, 9])
def test_what_was_interrupted_ends_with_the_report_of_what_was_not(
    case: str, after: int, kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(settings(tmp_path / "whole", **CASES[case])) == 0
    with monkeypatch.context() as patch:
        interrupt_after(after, patch, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            command.run(settings(tmp_path / "cut", **CASES[case]))
    assert f"Continue with: embodied-rl eval resume={tmp_path / 'cut'}\n" in capsys.readouterr().err
    assert not (tmp_path / "cut" / "report.json").exists()
    played: list[int] = []
    play = command.evaluate_policy

    def note(actor, handles, spec, episodes, seed, envs, executed, ablate, purpose, kept, **others):
        before = set(kept.found)
        results = play(actor, handles, spec, episodes, seed, envs, executed, ablate, purpose, kept, **others)
        played.extend(set(kept.found) - before)
        return results

    monkeypatch.setattr(command, "evaluate_policy", note)
    assert command.run(EvalConfig(resume=str(tmp_path / "cut"))) == 0
    whole = read(tmp_path / "whole")
    assert read(tmp_path / "cut") == whole and len(played) == len(whole["episodes"]) - after
    assert (f"{after} of {len(whole['episodes'])} episodes are done" in capsys.readouterr().out) == (after > 0)


@pytest.mark.thorough
def test_finished_evaluation_prints_its_report(cut: Path, capsys) -> None:
    for _ in range(2):
        assert command.run(EvalConfig(resume=str(cut))) == 0
    before = (cut / "report.json").read_bytes()
    capsys.readouterr()
    assert command.run(EvalConfig(resume=str(cut))) == 0
    printed = capsys.readouterr().out
    assert "is finished: nothing is left to run" in printed and "pick red" in printed
    assert (cut / "report.json").read_bytes() == before
    with refuses("key-unused", "task=pick"):
        command.run(EvalConfig(resume=str(cut), task="pick", overrides=("resume=x", "task=pick")))


def test_a_finished_report_of_a_stranger_is_shown_as_text_or_refused(cut: Path, capsys) -> None:
    assert command.run(EvalConfig(resume=str(cut))) == 0
    said = (cut / "report.json").read_text()
    (cut / "report.json").write_text(said.replace("pick red", "\\u001b[2J[/x]"))
    capsys.readouterr()
    assert command.run(EvalConfig(resume=str(cut))) == 0
    printed = capsys.readouterr().out
    assert "?[2J[/x]" in printed and "\x1b" not in printed
    for entries in ({"benchmark": "evil"}, {"not_run": 3}):
        content = json.loads(said)
        (cut / "report.json").write_text(json.dumps(content | {"metadata": content["metadata"] | entries}))
        with refuses("report-damaged", "report.json"):
            command.run(EvalConfig(resume=str(cut)))
    (cut / "report.json").rename(cut.parent / "outside.json")
    (cut / "report.json").symlink_to(cut.parent / "outside.json")
    with refuses("link-outside-folder", "report.json"):
        command.run(EvalConfig(resume=str(cut)))


def test_the_same_policy_may_lie_elsewhere_and_another_is_refused(cut: Path, kind, tmp_path: Path) -> None:
    with refuses("evaluation-differs", "policy[0]"):
        command.run(EvalConfig(resume=str(cut), policy="random", sim=SimChange()))
    (tmp_path / "other.safetensors").write_bytes(b"others")
    with refuses("evaluation-differs", "policy[0]"):
        command.run(EvalConfig(resume=str(cut), policy="other.safetensors"))
    (tmp_path / "policy.safetensors").rename(tmp_path / "moved.safetensors")
    assert command.run(EvalConfig(resume=str(cut), policy="moved.safetensors")) == 0


def test_a_file_that_changed_meanwhile_is_refused(cut: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.safetensors").write_bytes(b"trained on")
    with refuses("evaluation-differs", "policy[0]"):
        command.run(EvalConfig(resume=str(cut)))


def test_other_code_packages_and_simulators_are_refused_by_name(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = json.loads((cut / resumption.FILE).read_text())["metadata"]
    assert now["source_sha256"].keys() >= {"embodied_rl", "embodied_rl_sims"} and now["packages"]["torch"]
    resumption.check_same(cut, now, now)
    changes = {
        "packages.torch was": {"packages": {**now["packages"], "torch": "9.9"}},
        "source_sha256.embodied_rl was": {"source_sha256": {**now["source_sha256"], "embodied_rl": "x"}},
        "simulators[0].width was null and is 3": {"simulators": [{**now["simulators"][0], "width": 3}]},
    }
    for data, change in changes.items():
        with refuses("evaluation-differs", data):
            resumption.check_same(cut, now, now | change)
    monkeypatch.setattr(provenance, "hash_sources", lambda packages: {"embodied_rl": "of another commit"})
    with refuses("evaluation-differs", "source_sha256.embodied_rl"):
        command.run(EvalConfig(resume=str(cut)))


def test_other_hardware_is_recorded(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "describe_hardware", lambda: {"cpu": "another"})
    assert command.run(EvalConfig(resume=str(cut))) == 0
    found = read(cut)["metadata"]
    assert found["resumed_on"] == [{"cpu": "another"}] and found["hardware"] != {"cpu": "another"}


def test_the_hash_of_sources_follows_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "some_package" / "sub" / "module.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "some_package" / "__init__.py").touch()

    def found(text: str) -> str:
        file.write_text(text)
        return provenance.hash_sources(["some_package", "no_such_package"])["some_package"]

    assert found("a = 1") == found("a = 1") != found("a = 2")
    assert "embodied_rl" in metadata.list_packages()


@pytest.mark.parametrize("typed", ["seed=1", "episodes=5", "split=vision", "video.episodes=0", "plan.ranks=1"])
def test_other_keys_cannot_be_changed(typed: str, cut: Path) -> None:
    with refuses("key-fixed-on-resume", typed):
        command.run(EvalConfig(resume=str(cut), overrides=("resume=there", typed)))


@pytest.mark.parametrize("key", ["policy", "checkpoint"])
def test_the_policy_is_typed_again_where_it_lies_outside(
    cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(command, "find_home", lambda folder: folder)
    with refuses("setting-not-trusted", "policy (") as refused:
        command.run(EvalConfig(resume=str(cut)))
    remedy = str(refused.value).rpartition("type it yourself: ")[2]
    assert remedy == f"resume={cut} policy={tmp_path / 'policy.safetensors'}"
    assert command.run(EvalConfig(resume=str(cut), **{key: "policy.safetensors"})) == 0


def test_an_evaluation_of_a_run_may_name_its_run(tmp_path: Path) -> None:
    inside = tmp_path / "run" / "eval" / "eval_1"
    assert command.find_home(inside) == inside
    inside.mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").touch()
    assert command.find_home(inside) == tmp_path / "run"


def test_untrusted_folders_cannot_name_code(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own changes to the simulator are of a file, not typed."""
    monkeypatch.undo()  # what is checked is the true one again
    monkeypatch.setattr(command, "find_home", lambda folder: cut.parent)
    file = cut / resumption.FILE
    said = json.loads(file.read_text())
    said["config"]["sim"] = {"name": "tabletop", "python": "/tmp/evil"}
    file.write_text(json.dumps(said))
    with refuses("setting-not-trusted", "sim.python (code)"):
        command.run(EvalConfig(resume=str(cut)))
    typed = (f"resume={cut}", "policy=my policy.safetensors")
    with refuses("setting-not-trusted", f"resume={cut} 'policy=my policy.safetensors' sim.python=/tmp/evil"):
        command.run(EvalConfig(resume=str(cut), overrides=typed))
    with refuses("key-fixed-on-resume", "sim.horizon"):
        command.run(EvalConfig(resume=str(cut), sim=SimChange(None, {"horizon": 3})))


@pytest.mark.thorough
def test_incomplete_line_runs_again_and_damaged_lines_are_refused(cut: Path, capsys) -> None:
    file = cut / "episodes.jsonl"
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    other = lines[0].replace(b'"seed": ', b'"seed": 1')
    for code, line, content in (
        ("results-damaged", "line 2,", [lines[0], b"{}\n", *lines[2:]]),
        ("results-damaged", "line 10,", [*lines, lines[0]]),
        ("results-of-another-evaluation", "line 10,", [*lines, other]),
    ):
        file.write_bytes(b"".join(content))
        with refuses(code, line):
            command.run(EvalConfig(resume=str(cut)))
        assert file.read_bytes() == b"".join(content), "nothing is removed"
    file.write_bytes(whole + lines[0][:17])
    capsys.readouterr()
    assert command.run(EvalConfig(resume=str(cut))) == 0
    assert "The last line of episodes.jsonl was incomplete" in capsys.readouterr().out
    assert file.read_bytes().startswith(whole)
    assert {json.loads(line)["index"] for line in file.read_bytes().splitlines()} == set(range(20))


@pytest.mark.parametrize("content", ['{"secret": "hunter2"}', "{}\n", None])
def test_results_are_not_written_through_a_link(cut: Path, tmp_path: Path, content: str | None) -> None:
    """A line without an end is removed, and results are appended: neither in a file of the user's own."""
    outside = tmp_path / "outside.json"
    if content is not None:
        outside.write_text(content)
    (cut / "episodes.jsonl").unlink()
    (cut / "episodes.jsonl").symlink_to(outside)
    with pytest.raises(ValueError, match=r"episodes\.jsonl is a link to"):
        command.run(EvalConfig(resume=str(cut)))
    assert (outside.read_text() if outside.exists() else None) == content


@pytest.mark.parametrize("content", [DEEP, f'{{"config": {DEEP}, "metadata": {{}}}}'])
def test_an_evaluation_that_nests_too_deep(cut: Path, content: str) -> None:
    (cut / resumption.FILE).write_text(content)
    with pytest.raises(UserError, match=r"evaluation\.json is damaged: .*recursion"):
        command.run(EvalConfig(resume=str(cut)))


def test_a_result_that_nests_too_deep(cut: Path) -> None:
    (cut / "episodes.jsonl").write_text(DEEP + "\n")
    with refuses("results-damaged", "episodes.jsonl, line 1,", "recursion"):
        command.run(EvalConfig(resume=str(cut)))


def test_hardware_of_before_that_is_no_list(cut: Path) -> None:
    said = json.loads((cut / resumption.FILE).read_text())
    said["metadata"] |= {"hardware": "another", "resumed_on": 3}
    (cut / resumption.FILE).write_text(json.dumps(said))
    with refuses("evaluation-damaged", "evaluation.json", "resumed_on"):
        command.run(EvalConfig(resume=str(cut)))


@pytest.mark.thorough
def test_neither_an_unfinished_one_nor_a_finished_one_is_overwritten(cut: Path, kind, tmp_path: Path) -> None:
    with refuses("evaluation-unfinished", "resume="):
        command.run(settings(cut))
    assert command.run(EvalConfig(resume=str(cut))) == 0
    before = {path: path.read_bytes() for path in cut.iterdir()}
    with refuses("output-exists", cut):
        command.run(settings(cut, seed=1))
    assert {path: path.read_bytes() for path in before} == before


def test_missing_and_damaged_evaluations_are_refused(tmp_path: Path) -> None:
    with refuses("evaluation-missing", "evaluation.json"):
        command.run(EvalConfig(resume=str(tmp_path)))
    (tmp_path / resumption.FILE).write_text("{")
    with pytest.raises(ValueError, match=r"evaluation\.json is damaged"):
        command.run(EvalConfig(resume=str(tmp_path)))


def test_one_process_at_a_time(cut: Path) -> None:
    with command.ResultFile(cut / "lock.jsonl", [Episode(0, 0, 0)]), refuses("folder-in-use", cut):
        command.ResultFile(cut / "lock.jsonl", [Episode(0, 0, 0)])


def test_lost_processes_print_the_command_to_continue(kind, tmp_path: Path, monkeypatch) -> None:
    interrupt_after(3, monkeypatch, RunFailed("a process was lost"))
    with pytest.raises(RunFailed, match=r"lost\nOnce the cause is gone, continue with: embodied-rl eval resume="):
        command.run(settings(tmp_path / "cut"))


ARGUMENTS = {
    "asset": ("asset:tabletop_base.safetensors", "sim.num_envs=6", "episodes=30"),
    "expert": ("expert", "benchmark=tabletop", "episodes=63"),
    "random": ("random", "sim=tabletop", "episodes=120", "episodes_for=publish"),
}
QUIET = ("video.episodes=0", "video.best=0", "video.worst=0")


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("who", [pytest.param(who, marks=[pytest.mark.slow] * (who == "random")) for who in ARGUMENTS])
def test_killed_in_the_middle_and_continued_it_is_equal_to_the_bit(
    who: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, lines = tmp_path / "whole", tmp_path / "killed" / "cut" / "episodes.jsonl"
    assert main(["eval", *ARGUMENTS[who], *QUIET, f"out={whole}"]) == 0
    with started(tmp_path / "killed", "eval", *ARGUMENTS[who], *QUIET, "out=cut") as process:
        wait_for_lines(process, lines, 5)
        process.kill()
    done = lines.read_bytes().count(b"\n")
    assert 5 <= done < len(read(whole)["episodes"]) and not (lines.parent / "report.json").exists()
    assert main(["eval", f"resume={lines.parent}"]) == 0
    assert f"{done} of {len(read(whole)['episodes'])} episodes are done" in capsys.readouterr().out
    assert read(lines.parent) == read(whole)


@pytest.mark.thorough
@pytest.mark.process
def test_ctrl_c_prints_what_continues(tmp_path: Path) -> None:
    with started(tmp_path, "eval", "expert", "sim=tabletop", "episodes=5000", *QUIET, "out=cut") as process:
        wait_for_lines(process, tmp_path / "cut" / "episodes.jsonl", 2)
        process.signal_everybody(signal.SIGINT)
        code, said = process.finish()
    assert code == 130 and "Continue with: embodied-rl eval resume=cut\n" in said and "Traceback" not in said


def wait_for_lines(process: Process, file: Path, lines: int) -> None:
    until = time.monotonic() + DEADLINE
    while not file.is_file() or file.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < until and process.process.poll() is None, process.output()
        time.sleep(0.005)
