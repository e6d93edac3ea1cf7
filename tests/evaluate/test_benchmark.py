"""A benchmark enumerates tasks × initial states × seeds, every one exactly once."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.commands import eval as command
from embodied_rl.commands.preparation import compose_config
from embodied_rl.config.freeze import freeze_config
from embodied_rl.config.option_files import find_config_folder
from embodied_rl.evaluate import benchmark
from embodied_rl.interfaces.sim import SimulatorSpec, Task
from embodied_rl.reports.report import Report
from embodied_rl.reports.result import EpisodeResult
from embodied_rl.schema import BenchmarkNode, BenchmarkPart, EvalConfig, SimChange, SimNode, Video
from embodied_rl.schema.checks import validate_config
from tests.support.refusals import refuses


@dataclass
class Kind:
    node: SimNode
    spec: SimulatorSpec


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, spec: SimulatorSpec) -> list[SimNode]:
    """The simulators that were asked for: "desk" with four tasks, "kitchen" with one that has three initial states."""
    asked: list[SimNode] = []
    specs = {"desk": spec, "kitchen": replace(spec, tasks=(Task("cook", "cook", initial_states=3),))}

    def of(node: SimNode) -> Kind:
        asked.append(node)
        return Kind(node, specs[node.name])

    monkeypatch.setattr(benchmark, "check_file", lambda *said, **keys: None)
    monkeypatch.setattr(benchmark, "SimulatorKind", SimpleNamespace(find=of))
    return asked


DESK = BenchmarkPart({"name": "desk"}, seeds=3)
KITCHEN = BenchmarkPart({"name": "kitchen", "num_envs": 2}, initial_states=3, seeds=2)


def config(*parts: BenchmarkPart, **keys) -> EvalConfig:
    return EvalConfig(benchmark=BenchmarkNode("home", "a book", parts), **keys)


def test_every_task_initial_state_and_seed_runs_once(nodes) -> None:
    desk, kitchen = benchmark.make_parts(config(DESK, KITCHEN), None)
    assert Counter((e.task, e.initial_state, e.seed) for e in desk.episodes) == Counter(
        (task, None, seed) for task in range(4) for seed in range(3)
    )
    assert Counter((e.task, e.initial_state, e.seed) for e in kitchen.episodes) == Counter(
        (0, state, seed) for state in range(3) for seed in range(2)
    )
    assert [e.index for part in (desk, kitchen) for e in part.episodes] == list(range(18))
    found = benchmark.describe_benchmark(config(DESK, KITCHEN), [desk, kitchen])
    assert found == {
        "benchmark": "home", "protocol": "a book", "seeding": "shared", "complete": True, "changed": {},
        "seeds": [0, 1, 2], "initial_states": [0, 1, 2],
    }  # fmt: skip


@pytest.mark.parametrize(("seeding", "seeds"), [("shared", 2), ("per_state", 6)])
def test_initial_states_share_seeds_or_have_their_own(seeding: str, seeds: int, nodes) -> None:
    asked = replace(config(DESK, KITCHEN), benchmark=BenchmarkNode("home", "a book", (DESK, KITCHEN), seeding))
    desk, kitchen = benchmark.make_parts(asked, None)
    assert {e.seed for e in desk.episodes} == {0, 1, 2}, "without numbered states, nothing is other"
    by_state = [{e.seed for e in kitchen.episodes if e.initial_state == state} for state in range(3)]
    assert [len(each) for each in by_state] == [2] * 3 and len(set.union(*by_state)) == seeds
    assert [min(each) for each in by_state] == ([0] * 3 if seeding == "shared" else [0, 1, 2])
    assert benchmark.describe_benchmark(asked, [desk, kitchen])["seeding"] == seeding


@pytest.mark.parametrize("suite", ["spatial", "object", "goal", "10", "robustness"])
def test_libero_draws_fixtures_and_variations_for_each_state_unless_it_is_told_otherwise(suite: str) -> None:
    def read(*typed: str) -> BenchmarkNode:
        words = [f"benchmark=libero_{suite}", "policy=random", *typed]
        found = freeze_config(EvalConfig, compose_config("eval", words, ("episodes", "policy"))).benchmark
        assert found is not None
        return found

    assert read().seeding == "per_state" and read("benchmark.seeding=shared").seeding == "shared"


@pytest.mark.parametrize("episodes", [1, 5, 6, 17])
def test_a_part_of_it_is_even_over_tasks_and_does_not_pass_for_the_whole(episodes: int, nodes) -> None:
    asked = config(DESK, KITCHEN, episodes=episodes)
    parts = benchmark.make_parts(asked, None)
    sizes = [len(part.episodes) for part in parts]
    assert sum(sizes) == episodes and (max(sizes) - min(sizes) <= 1 or min(sizes) == 6)
    desk = Counter(e.task for e in parts[0].episodes)
    assert max(desk.values()) - min(desk[task] for task in range(4)) <= 1
    assert benchmark.describe_benchmark(asked, parts)["complete"] is False
    (picked,) = benchmark.make_parts(config(DESK, KITCHEN, task="pick"), None)
    assert {e.task for e in picked.episodes} == {0, 1} and len(picked.episodes) == 6
    assert benchmark.describe_benchmark(config(DESK, KITCHEN, task="pick"), [picked])["complete"] is False


def test_tasks_may_have_policies_of_their_own(nodes) -> None:
    asked = config(DESK, KITCHEN, policies={"pick": "a", "pick blue": "b", "cook": "b"})
    parts = benchmark.make_parts(asked, None)
    assert [(part.policy, part.place, {e.task for e in part.episodes}) for part in parts] == [
        ("a", 0, {0}), ("b", 0, {1}), ("b", 1, {0}),
    ]  # fmt: skip
    assert [e.index for part in parts for e in part.episodes] == list(range(12))
    found = benchmark.describe_benchmark(asked, parts)
    assert found["not_run"] == ["push red", "open"] and found["complete"] is False
    everything = replace(asked, policies={**asked.policies, "push": "a", "open": "b"})
    found = benchmark.describe_benchmark(everything, benchmark.make_parts(everything, None))
    assert found["not_run"] == [] and found["complete"] is True
    one = benchmark.make_parts(replace(asked, task="cook"), None)
    assert [part.policy for part in one] == ["b"]
    assert benchmark.describe_benchmark(replace(everything, task="cook"), one)["complete"] is False
    with refuses("task-unknown", "policies:", "'opne'", "'open'"):
        benchmark.make_parts(replace(asked, policies={"opne": "a"}), None)
    with refuses("policy-missing", "task=open"):
        benchmark.make_parts(replace(asked, policies={"pick": "a"}, task="open"), None)


def test_what_a_benchmark_leaves_open_is_the_policys_own(nodes) -> None:
    node = BenchmarkNode("home", "a book", (DESK, KITCHEN), open=("control", "size"))
    own = SimNode("kitchen", 9, options={"control": "joints", "horizon": 3, "size": 5})
    asked = replace(config(), benchmark=node, sim=SimChange(None, {"size": 7}))
    benchmark.make_parts(asked, own)
    assert [each.options for each in nodes] == [{"size": 7}, {"control": "joints", "size": 7}], "typed keys count more"
    nodes.clear()
    benchmark.make_parts(replace(asked, policies={"cook": "a", "open": "b"}), None, {"a": own, "b": None})
    assert nodes[2].options == {"control": "joints", "size": 7} and nodes[3].options == {"size": 7}
    nodes.clear()
    benchmark.make_parts(config(KITCHEN), own)
    assert nodes[0].options == {}, "other benchmarks leave nothing open"


def test_named_tasks_and_splits_are_those_that_run(nodes) -> None:
    (part,) = benchmark.make_parts(config(replace(DESK, tasks=("open", "pick red"), split="vision")), None)
    assert {(e.task, e.split) for e in part.episodes} == {(0, "vision"), (3, "vision")}


def test_what_is_typed_changes_the_benchmarks_simulator(nodes) -> None:
    asked = config(KITCHEN, sim=SimChange(None, {"python": "/there/python", "num_envs": 3, "light": 1}))
    parts = benchmark.make_parts(asked, None)
    assert nodes == [SimNode("kitchen", 3, "/there/python", (), {"light": 1})]
    assert benchmark.describe_benchmark(asked, parts)["changed"] == {"light": 1}


@pytest.mark.parametrize(
    ("change", "data"),
    [
        (SimChange("desk", {}), ["sim=desk:", "Leave benchmark=home out", "or leave sim=desk out"]),
        (SimChange(None, {"room": "bath"}), ["sim.room:", "benchmark=home", "'bed'"]),
    ],
)
def test_settings_of_the_benchmark_cannot_be_changed(change: SimChange, data: list[str], nodes) -> None:
    with refuses("keys-contradict", *data):
        benchmark.make_parts(config(replace(KITCHEN, sim={**KITCHEN.sim, "room": "bed"}), sim=change), None)


@pytest.mark.parametrize(
    "change, expected",
    [
        (SimChange(), SimNode("desk", 6, None, (), {"size": 3})),
        (SimChange(None, {"num_envs": 4}), SimNode("desk", 4, None, (), {"size": 3})),
        (SimChange("desk", {"size": 5}), SimNode("desk", 6, None, (), {"size": 5})),
        (SimChange("kitchen", {}), SimNode("kitchen")),
    ],
)
def test_without_a_benchmark_the_policys_own_simulator_is_changed(change: SimChange, expected: SimNode, nodes) -> None:
    (part,) = benchmark.make_parts(EvalConfig(sim=change), SimNode("desk", 6, options={"size": 3}))
    assert nodes == [expected] and len(part.episodes) == 512


@pytest.mark.parametrize(
    "parts, keys, code, data",
    [
        ((DESK,), {"task": "pick gren"}, "task-unknown", ["'pick gren'", "pick red"]),
        ((DESK,), {"split": "vision"}, "key-unused", ["split"]),
        ((DESK,), {"episodes_for": "publish"}, "key-unused", ["episodes_for=publish"]),
        ((replace(DESK, tasks=("opne",)),), {}, "task-unknown", ["'opne'", "'open'"]),
        ((replace(DESK, split="visoin"),), {}, "split-unknown", ["'visoin'", "'vision'"]),
        ((replace(DESK, initial_states=2),), {}, "initial-states-missing", ["'pick red' has 0", "2"]),
        ((replace(KITCHEN, initial_states=4),), {}, "initial-states-missing", ["'cook' has 3", "4"]),
    ],
)
def test_unknown_episodes_are_refused(parts, keys, code: str, data: list[str], nodes) -> None:
    with refuses(code, *data):
        benchmark.make_parts(config(*parts, **keys), None)


def test_results_of_several_simulators_keep_their_tasks(nodes, spec: SimulatorSpec) -> None:
    parts = benchmark.make_parts(config(DESK, KITCHEN), None)
    played = [
        [EpisodeResult(e.index, e.task, e.seed, e.split, part is parts[1], False, 1, 0.0, 0.0, e.initial_state)
         for e in part.episodes] for part in parts
    ]  # fmt: skip
    report = Report.from_results(*benchmark.combine_results(parts, played), {})
    assert {name: (s.success.rate, s.success.episodes) for name, s in report.tasks.items()} == {
        **{task.name: (0.0, 3) for task in spec.tasks}, "cook": (1.0, 6),
    }  # fmt: skip


def test_tasks_of_equal_names_are_told_apart(nodes) -> None:
    parts = benchmark.make_parts(config(DESK, replace(DESK, split="vision")), None)
    played = [[EpisodeResult(e.index, e.task, e.seed, e.split, number == 0, False, 1, 0.0, 0.0) for e in part.episodes]
              for number, part in enumerate(parts)]  # fmt: skip
    report = Report.from_results(*benchmark.combine_results(parts, played), {})
    assert (report.tasks["open"].success.rate, report.tasks["open (2)"].success.rate) == (1.0, 0.0)
    assert sum(each.success.episodes for each in report.tasks.values()) == 24


@pytest.mark.parametrize("name", sorted(path.stem for path in (find_config_folder() / "benchmark").glob("*.yaml")))
def test_every_benchmark_that_is_shipped_reads(name: str) -> None:
    mapping = compose_config("eval", [f"benchmark={name}", "policy=random"], ("episodes", "policy"))
    found = freeze_config(EvalConfig, mapping).benchmark
    assert found is not None and found.name == name and found.protocol


def test_the_operator_solves_the_tabletops_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mapping = compose_config(
        "eval", ["benchmark=tabletop", "policy=expert", "episodes=7", "out=here"], ("episodes", "policy")
    )
    assert command.run(freeze_config(EvalConfig, mapping)) == 0
    report = json.loads((tmp_path / "here" / "report.json").read_text())
    assert report["success"]["rate"] == 1.0 and len(report["tasks"]) == 7
    assert (report["metadata"]["complete"], report["metadata"]["seeds"]) == (False, [0])
    assert report["metadata"]["simulators"][0]["horizon"] == 50


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"policy": "random", "checkpoint": "x"},
        {"policy": "x", "policies": {"a": "y"}, "benchmark": BenchmarkNode("home", "a book", (DESK,))},
    ],
)
def test_exactly_one_policy_acts(given: dict[str, str]) -> None:
    with refuses("policy-not-given-once"):
        validate_config(EvalConfig(**given))
    with refuses("key-unused", "policies"):
        validate_config(EvalConfig(policies={"open": "x"}))


def test_a_policy_of_another_robot_is_refused_before_anything_runs(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    change = SimChange("tabletop", {"image_size": 32})
    asked = EvalConfig(policy="asset:tabletop_base.safetensors", sim=change, video=Video(0, 0, 0))
    with pytest.raises(ValueError, match=r"sees camera 'front' at \(64, 64\)"):
        command.run(asked)
    assert not list(tmp_path.iterdir())


def test_a_policy_that_fits_some_tasks_is_told_which_it_does_not_fit(nodes, spec: SimulatorSpec) -> None:
    parts = benchmark.make_parts(config(DESK, KITCHEN), None)
    embodiment = Embodiment.of_simulator(replace(spec, words=("x",)), 2, 4)
    command.check_policy_fits(embodiment, [parts[0]])
    parts[1] = replace(parts[1], spec=replace(parts[1].spec, state_names=("clock", "oven")))
    with pytest.raises(ValueError, match=r"kitchen, cook: .*state_names.*task=<name>"):
        command.check_policy_fits(embodiment, parts)
