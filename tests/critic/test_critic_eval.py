"""`critic eval` from a configuration to its files, and what is refused before anything is simulated."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.commands.critic_eval import check_evaluation, run
from embodied_rl.critic.evaluation import episode_source
from embodied_rl.critic.evaluation.html_report import choose_frames, choose_strips, measure_mistake
from embodied_rl.critic.evaluation.validation import read_evaluation
from embodied_rl.critic.gate import check_gate
from embodied_rl.critic.sequence_scoring import judge_episodes
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import CriticEvalConfig, RewardNode, SimChange
from tests.support import making_datasets
from tests.support.judging import LIMITS, Judge, current_time, episodes
from tests.support.refusals import refuses

ORACLE = RewardNode("scripted", timeout=60.0)
TABLETOP = SimChange("tabletop", {"image_size": 16, "horizon": 24})
URL = {"url": "http://127.0.0.1:9/v1"}


def configure(**changes: Any) -> CriticEvalConfig:
    return replace(CriticEvalConfig(ORACLE, sim=TABLETOP, episodes=4), **changes)


@pytest.mark.thorough
def test_operators_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(configure(out=str(tmp_path / "out")))
    report = json.loads((tmp_path / "out" / "critic.json").read_text())
    assert report["identity"] == "scripted oracle" and report["rests_on"]["purpose"] == "publish"
    assert report["rests_on"]["actors"].keys() == {"careful", "faulty"} and report["rests_on"]["seed"] == 0
    assert report["measures"]["progress_error"]["value"] == pytest.approx(0, abs=1e-6)
    identity, measures = read_evaluation(tmp_path / "out" / "critic.json")
    assert identity == "scripted oracle" and not check_gate(measures, "shaping").passed, "four episodes"
    page = (tmp_path / "out" / "critic.html").read_text()
    assert "<script" not in page and "data:image/png" in page and "May its scores become a reward?" in page
    out = capsys.readouterr().out
    assert "shaping: not passed" in out and "Written: " in out


def test_the_policy_of_a_run_acts_in_its_simulator(tmp_path: Path) -> None:
    who = "asset:tabletop_base.safetensors"
    config = configure(runs=(who,), sim=SimChange(None, {"horizon": 16}), episodes=2, out=str(tmp_path))
    run(config)
    report = json.loads((tmp_path / "critic.json").read_text())
    assert list(report["rests_on"]["actors"]) == [who] and report["rests_on"]["episodes"] == 2
    assert report["rests_on"]["simulators"][0]["name"] == "tabletop"


def bare(folder: Path) -> str:
    numbers = {name: each for name, each in making_datasets.NUMBERS.items() if name != "forces"}
    return str(making_datasets.made(folder, 2, numbers))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (lambda folder: {"sim": SimChange()}, "runs=<run folder>"),
        (lambda folder: {"reward": RewardNode()}, "reward=<scorer> is missing"),
        (lambda folder: {"dataset": str(folder)}, "stands alone"),
        (lambda folder: {"sim": SimChange(), "dataset": str(folder / "none")}, "none"),
        (lambda folder: {"sim": SimChange(), "dataset": bare(folder / "bare")}, "has no pictures"),
        (lambda folder: {"split": "visoin"}, "unknown split 'visoin'"),
        (lambda folder: {"sim": SimChange("gymnasium", {"id": "Pendulum-v1"})}, "sim.name=gymnasium"),
        (
            lambda folder: {"runs": ("asset:tabletop_base.safetensors",), "sim": SimChange("gymnasium")},
            "is of the simulator tabletop, and sim=gymnasium is another one",
        ),
        (lambda folder: {"runs": ("asset:tabletop_base.safetensors",) * 5 + ("expert",)}, "expert"),
        (
            lambda folder: {"reward": RewardNode("vlm", options=URL | {"views": ["bak"]})},
            "no scored camera is called 'bak'",
        ),
        (lambda folder: {"reward": RewardNode("vlm", options=URL)}, "cannot be reached"),
        (lambda folder: {"reward": RewardNode("embedded", options={"file": str(folder / "x.safetensors")})}, "x.safe"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_mistakes_are_told_before_anything_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Callable[[Path], dict[str, Any]], said: str
) -> None:
    monkeypatch.setattr(episode_source, "collect_episodes", lambda *given: pytest.fail("simulated"))
    monkeypatch.chdir(tmp_path)
    config = configure(**changes(tmp_path))
    for command in (run, check_evaluation):
        with pytest.raises(UserError) as problem:
            command(config)
        assert said in str(problem.value) and "\n" not in str(problem.value)
    assert not (tmp_path / config.out).exists()


def test_a_scorer_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_source, "collect_episodes", lambda *given: pytest.fail("simulated"))

    async def never(self: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("embodied_rl.judge.scorers.vlm.VlmScorer.check", never)
    with refuses("scorer-timeout", "reward.timeout=0.05"):
        run(configure(reward=RewardNode("vlm", timeout=0.05, options=URL | {"model": "judge"})))


def test_who_repeats_the_truth_is_refused_a_dataset(tmp_path: Path) -> None:
    folder = str(making_datasets.made(tmp_path / "shown", 2, {**making_datasets.PNG, **making_datasets.NUMBERS}))
    with refuses("scorer-needs-ground-truth"):
        run(configure(sim=SimChange(), dataset=folder, out=str(tmp_path / "out")))


# -- strips -----------------------------------------------------------------------------------------------------------


def test_worst_mistakes_come_first_and_nothing_twice() -> None:
    shown = episodes()
    judged = judge_episodes(Judge(current_time), shown, LIMITS, 2)
    groups = dict(choose_strips(shown, judged))
    worst = groups["The worst mistakes"]
    assert [measure_mistake(each) for each in worst] == sorted((measure_mistake(e) for e in judged), reverse=True)[:6]
    listed = [id(each) for group in groups.values() for each in group]
    assert len(listed) == len(set(listed)) and all(groups.values())
    place = int(np.argmax(np.abs(worst[0].values - worst[0].goal.progress)))
    assert place in choose_frames(worst[0]) and choose_frames(worst[0])[0] == 0
