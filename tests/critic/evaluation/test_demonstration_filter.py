"""Bad demonstrations are found by the shipped critic, good ones stay, and whatever goes is accounted for."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.commands import collect
from embodied_rl.config.freeze import freeze_config
from embodied_rl.critic.critic_file import save_critic
from embodied_rl.critic.evaluation.demonstration_filter import (
    DemonstrationFilter,
    FilterVerdict,
    JudgedDemonstration,
    ProgressCurve,
    choose_filter,
    choose_frames,
    group_episodes,
    judge_curve,
    measure_curve,
    measure_falls,
)
from embodied_rl.critic.evaluation.filtered_demonstrations import (
    FILE,
    SHOWN,
    FilterReport,
    convert_record,
    filter_dataset,
    filter_recording,
    filter_records,
)
from embodied_rl.datasets.record import Record
from embodied_rl.interfaces.sim import Observation
from embodied_rl.schema import CollectConfig, FilterNode, RewardNode, SimNode
from embodied_rl.training.algorithms.imitation.demonstrations import Demonstrations
from tests.support.critics import make_critic
from tests.support.planted_demonstrations import dropped_records, good_records, make_spec, play_backwards, stand_still
from tests.support.refusals import refuses

RULES = FilterNode(voc=0.9, losses=0.3, end=0.4, drop=0.3)
EMBEDDED = RewardNode("embedded")
NONE = np.zeros(0)


def make_filter(rules: FilterNode = RULES, reward: RewardNode = EMBEDDED) -> DemonstrationFilter:
    found = choose_filter(reward, rules, make_spec())
    assert found is not None
    return found


@cache
def planted() -> dict[str, tuple[Record, ...]]:
    good = good_records()
    return {
        "good": good,
        "reversed": tuple(map(play_backwards, good)),
        "stagnation": tuple(map(stand_still, good)),
        "dropped": dropped_records(),
    }


def read_report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / FILE).read_text(encoding="utf-8"))


def share_left_out(records: Sequence[Record], folder: Path) -> float:
    kept = list(filter_records(make_filter(), [*records, *good_records()], make_spec(), folder))
    left = [each for each in records if not any(each is one for one in kept)]
    return len(left) / len(records)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("what", "least", "most"),
    [("good", 0.0, 0.05), ("reversed", 0.95, 1.0), ("stagnation", 0.95, 1.0), ("dropped", 0.9, 1.0)],
)
def test_planted_faults_are_found_and_good_ones_stay(what: str, least: float, most: float, tmp_path: Path) -> None:
    records = planted()[what]
    assert len(records) >= 20
    assert least <= share_left_out(records, tmp_path) <= most


@pytest.mark.thorough
def test_the_account_has_every_episode_that_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = planted()["good"][:8], planted()["reversed"][:6]
    kept = list(filter_records(make_filter(), [*good, *bad], make_spec(), tmp_path))
    said, printed = read_report(tmp_path), capsys.readouterr().out
    assert list(map(id, kept)) == list(map(id, good))
    assert said["applied"] is True and said["rules"] == RULES.rules and "tabletop_critic" in said["identity"]
    assert said["totals"]["episodes"] == 14 and said["totals"]["left_out"] == 6 and said["totals"]["missing"] == 0
    assert said["totals"]["rows_left_out"] == sum(len(each.actions) for each in bad)
    assert [each["name"] for each in said["episodes"]] == [str(each.episode.index) for each in bad]
    for each in said["episodes"]:
        assert "voc" in each["faults"] and each["figures"]["voc"] < 0.9 and each["rows"] == each["rows_left_out"]
    assert sum(task["episodes"] for task in said["tasks"].values()) == 14
    assert "6 of 14 episodes" in printed and all(task in printed for task in said["tasks"])


def test_the_screen_shows_few_tasks_and_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    report, shown = FilterReport(make_filter()), convert_record(planted()["good"][0], make_spec(), 2)
    curve = ProgressCurve(shown.steps, NONE, NONE)
    for number in range(SHOWN + 5):
        each = replace(shown, task=f"\x1b[31m task {number:03d} [bold]")
        report.add(JudgedDemonstration(each, curve, FilterVerdict({}, ("voc",)), 0), 10, 10 - number % 10)
    report.finish(tmp_path, "out")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "[bold]" in printed and "and 5 tasks more: filter.json" in printed
    assert "task 019" in printed and "task 000" not in printed, "those that lost most"
    assert len(read_report(tmp_path)["tasks"]) == SHOWN + 5


def test_audit_tells_and_leaves_out_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = planted()["reversed"][:4]
    chosen = make_filter(reward=RewardNode("embedded", mode="audit"))
    assert list(filter_records(chosen, bad, make_spec(), tmp_path)) == list(bad)
    assert read_report(tmp_path)["applied"] is False and read_report(tmp_path)["totals"]["left_out"] == 4
    assert "would be left out" in capsys.readouterr().out


def test_a_filter_that_leaves_nothing_says_so(tmp_path: Path) -> None:
    with refuses("filter-kept-nothing", "filter.voc=0.9"):
        list(filter_records(make_filter(), planted()["reversed"][:4], make_spec(), tmp_path))
    assert read_report(tmp_path)["totals"]["left_out"] == 4


def record_rows(records: Sequence[Record], horizon: int) -> Demonstrations:
    seen: list[Observation] = []
    places: list[tuple[int, int, bool]] = []
    for step in range(max(len(each.actions) for each in records)):
        for number, each in enumerate(records):
            if step < len(each.actions):
                seen.append(each.observations[step])
                places.append((number, step, any(each.success)))
    episode, steps, success = (np.array(column) for column in zip(*places, strict=True))
    actions = np.zeros((len(seen), horizon, 4), np.float32)
    least = np.zeros(len(seen), np.int64)
    return Demonstrations(Observation.concatenate(seen), actions, actions, least, episode, steps, success)


def test_rows_before_a_fall_are_left_out_of_a_recording(tmp_path: Path) -> None:
    records = [*planted()["good"][:3], *planted()["dropped"][:3]]
    recorded = record_rows(records, horizon=8)
    episodes = [each.episode.__class__(n, each.episode.task, 0) for n, each in enumerate(records)]
    kept = filter_recording(make_filter(FilterNode(drop=0.3)), recorded, episodes, make_spec(), tmp_path)
    said = read_report(tmp_path)
    for number, each in enumerate(records):
        steps = kept.step[kept.episode == number]
        lost = len(each.actions) - len(steps)
        assert lost == 0 if number < 3 else 0 < lost <= 12, "of a fall, the rows of its chunk"
        np.testing.assert_array_equal(kept.observation.state[kept.episode == number][0], each.observations[0].state[0])
    assert said["totals"]["left_out"] == 0 and said["totals"]["rows_left_out"] == len(recorded) - len(kept)
    assert {each["name"] for each in said["episodes"]} == {"3", "4", "5"}


@pytest.mark.thorough
def test_rows_of_a_dataset_are_left_out_where_they_lie(tmp_path: Path) -> None:
    pytest.importorskip("av")
    from embodied_rl.datasets.lerobot import collected
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
    from embodied_rl.datasets.lerobot.stream import SampleStream

    records = [planted()["good"][0], planted()["reversed"][1], planted()["dropped"][0]]
    with collected.make_dataset(tmp_path / "set", make_spec(), "tabletop", "png") as writer:
        for each in records:
            collected.write_episode(writer, each)
    dataset = LeRobotDataset(tmp_path / "set")
    rules = FilterNode(voc=-0.8, drop=0.3)
    kept = filter_dataset(make_filter(rules), dataset, {"front": "front"}, 8, tmp_path)
    good, backwards, dropped = (kept[a:b] for a, b in zip(dataset.starts.tolist(), dataset.stops.tolist(), strict=True))
    assert good.all() and not backwards.any() and 0 < (~dropped).sum() <= 12
    read = np.concatenate([batch.row for batch in SampleStream(dataset, 16, epochs=1, kept=kept)])
    assert sorted(read.tolist()) == np.flatnonzero(kept).tolist()
    assert read_report(tmp_path)["totals"]["rows_left_out"] == (~kept).sum()
    assert {each["task"] for each in read_report(tmp_path)["episodes"]} <= set(dataset.tasks)


@pytest.mark.parametrize(
    ("reward", "rules", "code", "named"),
    [
        (RewardNode(), FilterNode(voc=0.5), "scorer-missing", "filter.voc"),
        (RewardNode(), FilterNode(every=4), "key-unused", "filter.every=4"),
        (RewardNode(options={"file": "x"}), FilterNode(), "key-unused", "reward.file"),
        (EMBEDDED, FilterNode(), "filter-without-rules", "filter.voc=0.9"),
        (RewardNode("embedded", mode="terminal"), RULES, "reward-mode-invalid", "reward.mode=terminal"),
        (RewardNode("scripted", options={"judge": "oracle"}), RULES, "scorer-needs-ground-truth", "oracle"),
        (
            RewardNode("vlm", options={"url": "http://x/v1", "model": "judge", "prompt": "done_yesno"}),
            RULES,
            "scorer-without-progress",
            "done_yesno",
        ),
    ],
)
def test_unused_settings_are_refused(reward: RewardNode, rules: FilterNode, code: str, named: str) -> None:
    assert choose_filter(RewardNode(), FilterNode(), make_spec()) is None
    with refuses(code, named):
        choose_filter(reward, rules, make_spec())


def test_a_critic_that_has_not_passed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "young.safetensors"
    save_critic(make_critic(), file, {})
    reward = {"name": "embedded", "options": {"file": str(file)}}
    with refuses("scorer-not-evaluated", "young "):
        choose_filter(RewardNode(**reward), RULES, make_spec())
    assert choose_filter(RewardNode(**reward, mode="audit"), RULES, make_spec()) is not None


def test_pictures_are_judged_in_groups_in_their_order() -> None:
    shown = [convert_record(each, make_spec(), 2) for each in planted()["good"][:5]]
    size = shown[0].frames["front"].nbytes
    groups = list(group_episodes(iter(shown), size))
    assert len(groups) > 1 and [each.name for group in groups for each in group] == [each.name for each in shown]


@pytest.mark.thorough
def test_collect_leaves_out_what_comes_to_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim, out = SimNode("tabletop"), tmp_path / "out"
    config = CollectConfig(sim, out=str(out), episodes=6, reward=EMBEDDED, filter=FilterNode(end=0.4))
    collect.run(config)
    lines = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    assert len(lines) + read_report(out)["totals"]["left_out"] == 6 and len(lines) >= 4
    assert f"{len(lines)} episodes in" in capsys.readouterr().out


# -- rules, on curves whose figures can be computed by hand ------------------------------------------------------------


def curve(progress: list[float], every: int = 2, gains: list[float] | None = None) -> ProgressCurve:
    return ProgressCurve(
        np.arange(len(progress)) * every, np.array(progress), NONE if gains is None else np.array(gains)
    )


@pytest.mark.parametrize(
    ("progress", "figures"),
    [
        ([0.0, 0.3, 0.6, 1.0], {"voc": 1.0, "losses": 0.0, "end": 1.0, "drop": 0.0}),
        ([1.0, 0.6, 0.3, 0.0], {"voc": -1.0, "losses": 1.0, "end": 0.0, "drop": 0.7}),
        ([0.2, 0.2, 0.2, 0.2], {"voc": 0.0, "losses": 0.0, "end": 0.2, "drop": 0.0}),
        ([0.0, 0.6, 0.595, 0.7], {"voc": 0.8, "losses": 0.0, "end": 0.7, "drop": -0.0}),
        ([0.0, 0.8, 0.4, 0.5], {"voc": 0.4, "losses": 1 / 3, "end": 0.5, "drop": 0.3}),
    ],
)
def test_figures_are_those_computed_by_hand(progress: list[float], figures: dict[str, float]) -> None:
    assert measure_curve(curve(progress), 4) == pytest.approx(figures, abs=1e-4)


def test_a_pair_scorer_s_own_gains_count() -> None:
    found = measure_curve(curve([0, 0.5, 0.25, 0.4], gains=[0.5, -0.5, 0.2]), 4)
    assert found["losses"] == pytest.approx(1 / 3, abs=1e-4)
    assert measure_curve(curve([0, 0.5, 0.49, 0.6], gains=[0.5, -0.005, 0.2]), 4)["losses"] == 0


def test_missing_scores_are_left_out_and_too_few_say_nothing() -> None:
    whole, gap = curve([0, 0.2, 0.4, 0.6]), curve([0, np.nan, 0.4, 0.6])
    assert measure_curve(gap, 4) == measure_curve(whole, 4)
    silent = judge_curve(curve([0, np.nan, np.nan, 0.6]), FilterNode(voc=1.0, end=1.0), 4, whole=True)
    assert silent.figures == {} and silent.faults == ()


def test_each_rule_speaks_for_itself_and_an_unset_one_never() -> None:
    bad = curve([0.5, 0.9, 0.2, 0.1])
    rules = {"voc": 0.5, "losses": 0.5, "end": 0.5, "drop": 0.5}
    for name, threshold in rules.items():
        assert judge_curve(bad, freeze_config(FilterNode, {name: threshold}), 4, whole=True).faults == (name,)
    assert judge_curve(bad, freeze_config(FilterNode, rules), 4, whole=True).faults == tuple(rules)
    assert judge_curve(bad, freeze_config(FilterNode, rules), 4, whole=False).faults == ("voc", "losses", "end")
    assert judge_curve(bad, FilterNode(), 4, whole=True).faults == ()
    assert judge_curve(curve([0, 0.5, 1]), FilterNode(voc=1.0, losses=0.0, end=1.0, drop=0.0), 4, True).faults == ()


def test_a_row_s_fall_is_over_its_own_chunk() -> None:
    falls = measure_falls(curve([0.0, 0.8, 0.2, 0.6]), np.arange(7), 2)
    np.testing.assert_allclose(falls, [-0.8, -0.1, 0.6, 0.1, -0.4, -0.2, 0], atol=1e-12)


def test_frames_are_apart_and_the_ends_are_among_them() -> None:
    assert choose_frames(np.arange(8), 3).tolist() == [0, 3, 6, 7]
    assert choose_frames(np.array([2, 3, 9, 10, 11]), 2).tolist() == [0, 2, 4]
    assert choose_frames(np.array([5]), 2).tolist() == [0]
