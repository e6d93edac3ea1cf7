"""`embodied-rl eval delay=…`: what runs, what is reported, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.commands import eval as command
from embodied_rl.commands.compare import run as compare
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import (
    BenchmarkNode,
    BenchmarkPart,
    CompareConfig,
    EvalConfig,
    Plan,
    SimChange,
    SimNode,
    Video,
)
from tests.support.refusals import refuses

HOLD = (0.0, 0.0)


def run(out: Path, **changes: Any) -> dict:
    usual = {"checkpoint": "policy.safetensors", "episodes": 20, "video": Video(0, 0, 0), "plan": Plan(ranks=2)}
    assert command.run(EvalConfig(**(usual | changes), out=str(out))) == 0
    return json.loads((out / "report.json").read_text())


def test_a_report_says_delay_strategy_and_steps_to_success(kind, tmp_path: Path, capsys) -> None:
    found = run(tmp_path / "late", delay=2, hold=HOLD)
    assert {key: found["metadata"][key] for key in ("delay", "strategy", "replan")} == {
        "delay": 2,
        "strategy": "naive",
        "replan": 2,
    }
    printed = capsys.readouterr().out
    assert "Inference takes 2 control steps; strategy=naive, one every 2." in printed
    assert "delay 2, naive, every 2" in " ".join(printed.split()) and "to success" in printed
    successes = [each for each in found["episodes"] if each["success"]]
    assert successes and all(each["steps_to_success"] == each["steps"] for each in successes)
    assert found["steps_to_success"] == pytest.approx(sum(each["steps"] for each in successes) / len(successes))
    assert min(each["steps"] for each in successes) > 2, "the first chunk is waited for"
    assert "delay 2, naive, every 2" in (tmp_path / "late" / "report.html").read_text()


def test_without_a_delay_nothing_changes(kind, tmp_path: Path) -> None:
    plain, named = run(tmp_path / "plain"), run(tmp_path / "named", delay=0, strategy="blend")
    assert plain["episodes"] == named["episodes"] and named["metadata"]["delay"] == 0
    assert "strategy" not in named["metadata"]


def test_films_show_what_was_evaluated(kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filmed = []
    monkeypatch.setattr(command, "film_episodes", lambda *given, delay, **counts: filmed.append(delay) or [])
    run(tmp_path / "late", delay=2, strategy="stop", hold=HOLD)
    (delay,) = filmed
    assert (delay.steps, delay.strategy, delay.replan) == (2, "stop", 4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delay": 1}, r"does not say with which action .* hold=\[…\], 2 numbers for x, y"),
        ({"delay": 4, "hold": HOLD}, "delay=4 needs chunks of 8 actions, and this policy predicts 6"),
        ({"delay": 1, "replan": 6, "hold": HOLD}, "Take replan=5, a delay of at most 3"),
        ({"delay": 1, "strategy": "prefix", "hold": HOLD}, "trained without executed actions"),
        (
            {"delay": 1, "policy": "random", "checkpoint": None, "sim": SimChange("clock")},
            "random chooses one action",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_it_begins(kind, changes: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        run(tmp_path / "none", **changes)
    assert not (tmp_path / "none").exists()


@pytest.mark.thorough
def test_a_simulator_that_waits_by_itself_is_refused(kind, tmp_path: Path) -> None:
    kind.node = SimNode("clock", num_envs=6, options={"inference_delay": [0, 3]})
    with refuses("keys-contradict", "sim.inference_delay=[0, 3]"):
        run(tmp_path / "none", delay=1, hold=HOLD)
    kind.node = replace(kind.node, options={"inference_delay": [0, 0]})
    run(tmp_path / "late", delay=1, hold=HOLD)


@pytest.mark.thorough
def test_unequal_delays_are_not_compared(kind, tmp_path: Path) -> None:
    for name, changes in {"none": {}, "late": {"delay": 2}, "stops": {"delay": 2, "strategy": "stop"}}.items():
        run(tmp_path / name, hold=HOLD, **changes)
    compare(CompareConfig(runs=tuple(str(tmp_path / name) for name in ("none", "late", "stops")), out=str(tmp_path)))
    said = (tmp_path / "compare.md").read_text()
    assert said.count("their inference delays differ: 0 and 2 control steps") == 2
    assert "delay 2, naive, every 2 and delay 2, stop, every 4" in said


def test_each_part_of_a_benchmark_runs_under_the_delay(kind, tmp_path: Path) -> None:
    parts = (BenchmarkPart({"name": "clock"}, seeds=3), BenchmarkPart({"name": "clock"}, seeds=2, split="vision"))
    both = {"benchmark": BenchmarkNode("home", "a book", parts), "episodes": None, "hold": HOLD}
    slow, fast = (run(tmp_path / str(d), delay=d, **both)["episodes"] for d in (2, 0))
    assert {each["simulator"] for each in slow} == {0, 1} and len(slow) == len(fast) == 20
    for simulator in (0, 1):
        one, other = ([e["smoothness"] for e in each if e["simulator"] == simulator] for each in (slow, fast))
        assert one != other, "another policy would run there"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delay": 3}, "needs chunks of 6 actions, and this policy predicts 5"),
        ({"delay": 1, "strategy": "prefix"}, "trained without executed actions"),
    ],
)
def test_a_dry_run_reads_the_file_s_header(changes: dict, said: str) -> None:
    """With the tabletop and its policy, whose weights nobody loads."""
    asked = {"policy": "asset:tabletop_careful.safetensors", "episodes": 4, "plan": Plan()}
    assert command.check_evaluation(EvalConfig(**asked, delay=2))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=said):
        command.check_evaluation(EvalConfig(**asked, **changes))  # type: ignore[arg-type]
