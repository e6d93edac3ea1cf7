"""`embodied-rl plan`: stages measured on a simulator that takes a known time, and what is printed and written."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied_rl.assembly import build
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance
from embodied_rl.runtime.processes.handle import WorkerDied
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import AlgoNode, PolicyNode, SimNode, TrainConfig
from embodied_rl.schema.config_file import load_config
from embodied_rl.testing.fake_simulator import FakeSimulator
from embodied_rl.training.planner import plan_selection, policy_memory, profile
from embodied_rl.training.planner.allocation import Resources
from embodied_rl.training.planner.costs import CostFile, Costs, LinearCost
from embodied_rl.training.planner.model import Workload
from embodied_rl.training.planner.profile import StageSamples, choose_sizes
from embodied_rl.training.planner.search import choose_allocation
from tests.support.running import REACHING, SMALL

PLAN = ("plan", *(word for word in SMALL if not word.startswith("run.")), *REACHING)
STEP = 0.02


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's caches are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def costs(tmp_path: Path) -> str:
    """A file of costs by which two ranks are best on two cores."""
    file = tmp_path / "costs.json"
    file.write_text(
        CostFile(
            Costs(step=LinearCost(0.01, 0.01), inference=LinearCost(0.01, 0.01), update=LinearCost(0.1, 0.01))
        ).text()
    )
    return str(file)


@pytest.mark.thorough
@pytest.mark.process
def test_stages_of_known_length_are_measured(typed, tmp_path) -> None:
    code, out, err = typed(*PLAN, f"sim.seconds={STEP}")
    assert code == 0, err
    measured = CostFile.read(tmp_path / "plan" / "costs.json")
    chunk = 2 * STEP  # of all environments together: the fake sleeps once a control step
    assert measured.costs.step(8) >= chunk
    assert measured.costs.inference(8) > 0 and measured.costs.update(64) > 0 and measured.costs.transfer(8) > 0
    assert measured.costs.simulator_memory(8) > 1e7 and measured.costs.policy_memory(64) > 1e8
    assert {"step", "inference", "update"} <= set(measured.spread) and "measured" in measured.about
    written = json.loads((tmp_path / "plan" / "plan.json").read_text())
    expected = choose_allocation(
        measured.costs, Resources(**written["resources"]), Workload(**written["workload"])
    ).best
    assert written["chosen"]["allocation"]["mode"] == expected.allocation.mode
    assert f"Chosen: {expected.allocation}" in out


def test_a_transfer_is_the_time_of_a_call_beyond_that_of_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only the calls advance: 5 s for a chunk, 2 s for its messages, 30 s until it has started."""
    now = [0.0]
    monkeypatch.setattr(profile.time, "perf_counter", lambda: now[0])

    class Handle:
        spec, seconds = FakeSimulator.spec_of(FakeSimulator.Config()), 5.0

        def submit(self, call: str, *arguments: object) -> "Handle":
            now[0] += 30.0 if call == "reset" else 2.0
            return self

        def result(self) -> None:
            now[0] += self.seconds

        def memory(self) -> int:
            return 7

        def close(self) -> None:
            """Nothing to release."""

    embodiment = SimpleNamespace(executed=2, action_names=Handle.spec.action_names)
    bench = object.__new__(profile._Bench)
    bench.config = TrainConfig(SimNode("fake", num_envs=8), PolicyNode("pocket"), AlgoNode("ppo"))
    bench.kind, bench.group_size = SimpleNamespace(worker=lambda *_: Handle()), 1  # type: ignore[assignment]
    bench.actor = SimpleNamespace(embodiment=embodiment)  # type: ignore[assignment]
    samples = StageSamples()
    assert bench.workers(samples) == 0.0
    assert set(samples.found["transfer"]) == {(1, 2.0), (4, 2.0)}
    assert samples.found["simulator_memory"] == [(1, 7), (4, 7)]


def test_costs_of_another_machine_are_planned_with(typed, costs, tmp_path) -> None:
    code, out, _ = typed(*PLAN, f"costs={costs}", "resources=2xcore", "out=elsewhere")
    assert code == 0
    assert "To use it: plan=colocated plan.ranks=2" in out
    assert (tmp_path / "elsewhere" / "plan.json").is_file()
    assert not (tmp_path / "elsewhere" / "costs.json").exists()  # nothing was measured


@pytest.mark.thorough
def test_costs_of_cores_do_not_pass_for_those_of_accelerators(typed, costs, tmp_path) -> None:
    content = json.loads(Path(costs).read_text()) | {"about": {"cores": 2, "cpu": "Some Processor 3000"}}
    (tmp_path / "cores.json").write_text(json.dumps(content))
    _, out, _ = typed(*PLAN, f"costs={tmp_path / 'cores.json'}", "resources=8xgpu")
    assert "measured on 2 cores of Some Processor 3000. For 8 accelerators they say nothing" in " ".join(out.split())
    _, out, _ = typed(*PLAN, f"costs={tmp_path / 'cores.json'}", "resources=2xcore")
    assert "measured on Some Processor 3000; this machine has" in " ".join(out.split())


def test_accelerators_are_planned_for(typed, costs) -> None:
    code, out, _ = typed(*PLAN, f"costs={costs}", "resources=8xgpu:80GB")
    assert code == 0
    assert "Chosen: colocated, 8 ranks" in out and "To use it" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resources=8xgpu"], "resources=8xgpu: what accelerators cost cannot be measured here. Give costs=<file>"),
        (["resources=8xtpu"], "[resources-invalid]"),
        (["resources=8xgpu+2xgpu"], "[resources-invalid]"),
        (["resources=0xcore"], "[resources-invalid]"),
        (["costs=nowhere.json"], "[costs-missing]"),
        (["experiment=tabletop_sft"], "[experiment-of-another-command]"),
    ],
)
def test_mistakes_are_explained(typed, words, message) -> None:
    code, _, err = typed(*PLAN, *words)
    assert code == 2 and message in err and "Traceback" not in err


def test_too_little_memory_is_an_error(typed, tmp_path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(CostFile(Costs(LinearCost(1), LinearCost(1), LinearCost(1), policy_memory=LinearCost(5e9))).text())
    code, _, err = typed(*PLAN, f"costs={file}", "resources=2xcore:4GB")
    assert code == 2 and "[plan-infeasible]" in err and "sim.num_envs" in err


def test_what_a_policy_needs_is_counted_without_its_weights(typed, costs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Printed for accelerators and cores; where it does not fit, before anything is measured."""
    config = TrainConfig(SimNode("tabletop"), PolicyNode("pocket", critic="privileged"), AlgoNode("ppo"))
    counted = policy_memory.count_policy(config, Resources(2))
    actor = build.outline_actor(
        config.policy, config.algo.sampler, SimulatorKind.find(config.sim).spec, build.find_method(config.algo).needs
    )
    assert counted.parameters == sum(each.numel() for each in actor.parameters())
    assert counted.update.weights == 4 * counted.parameters and counted.acting < counted.all_acting
    code, out, err = typed(*PLAN, f"costs={costs}", "resources=2xgpu:0.0005GB")
    assert code == 2 and "[plan-infeasible]" in err and "counted" in err and " parameters; " in out
    monkeypatch.setattr(profile, "measure_stages", lambda *_: pytest.fail("measured"))
    code, _, err = typed(*PLAN, "resources=2xcore:0.0005GB")
    assert code == 2 and "[plan-infeasible]" in err and "counted" in err


def test_a_policy_that_cannot_be_counted_is_said_to_be_so(typed, costs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of another machine are planned with although the policy's checkpoint is not here."""

    def fail(*_: object) -> None:
        raise UserError("nowhere.safetensors: there is no such file", code="checkpoint-missing")

    monkeypatch.setattr(policy_memory, "count_policy", fail)
    code, out, _ = typed(*PLAN, f"costs={costs}", "resources=2xgpu:80GB")
    assert code == 0 and "nowhere.safetensors" in out


def test_sizes_are_whole_groups() -> None:
    assert choose_sizes(96) == [12, 24, 48, 96]
    assert choose_sizes(96, 16) == [16, 48, 96]
    assert choose_sizes(2) == [1, 2]


def test_the_median_at_each_size_makes_the_line() -> None:
    first, second = StageSamples(), StageSamples()
    for size, seconds in ((10, 0.2), (20, 0.3), (20, 9.0)):
        first.add("step", size, seconds)
    for size, seconds in ((10, 0.2), (20, 0.3)):
        second.add("step", size, seconds)
    merged = first.merge([first, second])
    assert merged.line("step")(15) == pytest.approx(0.25)
    assert merged.spread("step") == pytest.approx(8.7 / 0.3)
    assert merged.line("render") == LinearCost()


AUTO = ("train", *SMALL, *REACHING, "plan=auto", "train.iterations=2", "plan.call_timeout=77")


@pytest.mark.thorough
@pytest.mark.process
def test_a_run_measures_once_and_keeps_its_plan(typed, cache, tmp_path) -> None:
    code, out, err = typed(*AUTO)
    assert code == 0, err
    assert "Measuring the stages" in out and "decisions/s predicted" in out
    (file,) = (cache / "embodied-rl" / "costs").glob("reaching_*.json")
    (run,) = (tmp_path / "runs" / "train").iterdir()
    chosen = json.loads((run / "plan.json").read_text())["chosen"]["allocation"]
    plan = load_config(TrainConfig, run / "config.yaml").plan
    assert (plan.allocation, plan.ranks, plan.slices) == (chosen["mode"], chosen["ranks"], chosen["slices"])
    assert plan.call_timeout == 77
    said = CostFile(
        Costs(LinearCost(0.01), LinearCost(10.0), LinearCost(1.0), policy_memory=LinearCost(1e9)),
        {"measured": "long ago"},
    )
    file.write_text(said.text())
    code, out, err = typed(*AUTO)
    assert code == 0, err
    assert "Measuring" not in out and "measured long ago" in out


@pytest.fixture
def store(typed, tmp_path: Path) -> Path:
    """Where a run of `AUTO` looks for costs that were measured before."""
    code, told, _ = typed(*AUTO, "--cfg", "job")
    assert code == 0
    (tmp_path / "told.yaml").write_text(told)
    file = plan_selection.find_cost_file(load_config(TrainConfig, tmp_path / "told.yaml"))
    file.parent.mkdir(parents=True)
    return file


@pytest.mark.parametrize("content", ["{", "[]", '{"step": -1}'])
def test_damaged_costs_are_not_used(store, tmp_path, content: str) -> None:
    """`plan=auto` measures again, as if there were none."""
    store.write_text(content)
    assert plan_selection.read_known_costs(load_config(TrainConfig, tmp_path / "told.yaml")) is None


def test_a_mistake_is_found_before_anything_is_measured(typed, cache) -> None:
    code, out, err = typed(*AUTO, "policy.checkpoint=nowhere.safetensors")
    assert code == 2 and "nowhere.safetensors is not there" in err and "Measuring" not in out


def test_only_training_plans_itself(typed, cache) -> None:
    code, _, err = typed("eval", "checkpoint=asset:tabletop_base.safetensors", "plan=auto")
    assert code == 2 and "plan=auto is for training" in err
    code, out, _ = typed(*AUTO, "--dry-run")
    assert code == 0 and "auto: chosen for this machine" in out


FORCED = (*(word for word in AUTO if word != "plan=auto"), "train.iterations=1")
TWO_ARE_BETTER = Costs(step=LinearCost(0.01, 0.01), inference=LinearCost(0.01, 0.01), update=LinearCost(0.1, 0.01))


@pytest.mark.parametrize("key", ["plan.ranks=1", "plan.slices=2", "plan.workers=3"])
def test_settings_that_auto_chooses_cannot_be_set(typed, key) -> None:
    code, _, err = typed(*AUTO, key)
    assert code == 2 and f"{key}: plan=auto" in err and f"plan=colocated {key}" in err


@pytest.mark.thorough
@pytest.mark.process
def test_a_slow_prescribed_plan_is_reported(typed, store, tmp_path) -> None:
    store.write_text(CostFile(TWO_ARE_BETTER, {"measured": "long ago"}).text())
    code, out, _ = typed(*FORCED, "plan=colocated", "plan.ranks=1")
    assert code == 0 and "Another plan is predicted to be faster: colocated, 1 rank" in out and "plan=auto takes" in out
    run = max((tmp_path / "runs" / "train").iterdir(), key=lambda path: path.stat().st_mtime)
    written = json.loads((run / "plan.json").read_text())
    assert written["chosen"]["allocation"]["ranks"] == 1 and written["chosen"]["prediction"]["seconds"] > 0
    code, out, _ = typed(*FORCED, "plan=colocated", "plan.ranks=2")
    assert code == 0 and "loss" not in out


@pytest.mark.thorough
def test_a_prescribed_plan_that_does_not_fit_is_refused(typed, store) -> None:
    store.write_text(CostFile(replace(TWO_ARE_BETTER, policy_memory=LinearCost(1e15)), {"measured": "long ago"}).text())
    code, _, err = typed(*FORCED, "plan=colocated", "plan.ranks=1")
    assert code == 2 and "1000000.0 GB" in err and "[plan-infeasible]" in err


def test_a_plan_comes_back_from_its_file(typed, costs, tmp_path) -> None:
    cores = provenance.describe_hardware()["cores"]
    assert typed(*PLAN, f"costs={costs}", f"resources={cores}xcore")[0] == 0
    file = tmp_path / "plan" / "plan.json"
    content = json.loads(file.read_text())
    content["chosen"]["allocation"] |= {"mode": "split", "ranks": 1, "slices": 2, "workers": 2, "order": "ready"}
    file.write_text(json.dumps(content))
    code, out, err = typed(*FORCED, f"plan={file}", "--cfg", "job")
    assert code == 0, err
    for line in ("allocation: split", "ranks: 1", "slices: 2", "workers: 2", "order: ready"):
        assert f"  {line}\n" in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resources": {"cores": 4096, "devices": 0}}, "(cores: 4096, here "),
        ({"about": {"cpu": "an abacus"}}, "(cpu: an abacus, here "),
        ({"resources": {"cores": 8, "devices": 8}}, "8 accelerators"),
        ({"chosen": None}, "[plan-damaged]"),
    ],
)
def test_a_plan_of_another_machine_is_refused(typed, tmp_path, change, message) -> None:
    content = {
        "resources": {"cores": provenance.describe_hardware()["cores"], "devices": 0},
        "about": {},
        "chosen": {"allocation": {"mode": "colocated", "ranks": 2, "slices": 1, "workers": 0, "order": "exact"}},
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content | change))
    code, _, err = typed(*FORCED, f"plan={file}")
    assert code == 2 and message in err
    if "here" in message:
        assert "[plan-other-machine]" in err and "plan=colocated plan.ranks=2 plan.slices=1" in err


def test_a_plan_that_is_not_there(typed) -> None:
    code, _, err = typed(*FORCED, "plan=nowhere.json")
    assert code == 2 and "nowhere.json" in err and "[plan-missing]" in err


@pytest.mark.thorough
def test_a_run_on_another_machine_keeps_its_plan_with_a_note(typed, tmp_path) -> None:
    code, out, err = typed(*FORCED, "train.iterations=2", "plan=colocated", "plan.ranks=1")
    assert code == 0, out + err
    (run,) = (tmp_path / "runs" / "train").iterdir()
    (run / "report.html").unlink()
    file = run / "provenance.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"hardware": told["hardware"] | {"cores": 4096}}))
    code, out, err = typed("train", "resume=last")
    assert code == 0, err
    assert "planned for another machine (cores: 4096, here " in out


def test_a_probe_that_dies_leaves_a_way_out(typed, cache, monkeypatch) -> None:
    def killed(config: TrainConfig, cores: int) -> None:
        raise WorkerDied("probe (pid 7) was killed by SIGKILL during 'measure'.")

    monkeypatch.setattr(profile, "measure_stages_apart", killed)
    code, _, err = typed(*AUTO)
    assert code == 2 and "probe (pid 7)" in err and "[plan-costs-not-measured]" in err
