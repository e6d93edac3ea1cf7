"""`embodied-rl eval` from the checkpoint to the report."""

import json
import re
from types import SimpleNamespace

import pytest

from embodied_rl.assembly import evaluated_policies
from embodied_rl.commands import eval as command
from embodied_rl.config.freeze import to_yaml
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import BenchmarkNode, BenchmarkPart, CompareConfig, EvalConfig, Plan, SimChange, SimNode, Video
from tests.support.refusals import refuses


def run(**changes):
    settings = {"checkpoint": "policy.safetensors", "episodes": 20, "video": Video(4, 1, 1), "plan": Plan(ranks=2)}
    assert command.run(EvalConfig(**(settings | changes))) == 0


@pytest.mark.thorough
def test_a_bare_file_is_reported_here(kind, tmp_path, capsys):
    run()
    (folder,) = (tmp_path / "eval").iterdir()
    assert re.fullmatch(r"eval_\d{8}-\d{6}", folder.name)
    assert {path.name for path in folder.iterdir()} == {
        "evaluation.json",
        "episodes.jsonl",
        "report.json",
        "report.html",
        "grid.mp4",
        "best.mp4",
        "worst.mp4",
        "grid.jpg",
        "best.jpg",
        "worst.jpg",
        "failure_1.mp4",
        "failure_1.jpg",
    }
    content = json.loads((folder / "report.json").read_text())
    assert content["success"]["episodes"] == 20 and content["metadata"]["checkpoint"] == "policy.safetensors"
    assert {"split", "seed", "commit", "packages", "episodes_sha256"} <= content["metadata"].keys()
    printed = capsys.readouterr().out
    assert f"{content['success']['rate']:.1%}" in printed and "pick red" in printed and "report.html" in printed
    assert (folder / "report.html").read_text().count("data:video/mp4") == 4


def test_results_are_written_for_vla_eval_and_compared_with_a_published_rate(kind, tmp_path, capsys):
    run(format="vla_eval", reported=1.0, video=Video(0, 0, 0), out="here")
    found, own = (json.loads((tmp_path / "here" / name).read_text()) for name in ("vla_eval.json", "report.json"))
    assert found["num_episodes_total"] == 20 and found["status"] == own["metadata"]["status"]
    assert f"Reported: 100.0%: {found['status']}" in capsys.readouterr().out
    assert (found["interval"][1] >= 1.0) == (found["status"] == "reproduced")


def test_no_folder_is_written_over(kind, tmp_path):
    """Neither a run nor an evaluation."""
    run(out="here", video=Video(0, 0, 0))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_text("precious")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for out in ("here", "run"):
        with refuses("output-exists", f"out={out}"):
            run(out=out, video=Video(0, 0, 0))
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_is_reported_in_its_folder_with_its_simulator_and_curves(kind, tmp_path):
    folder = RunFolder.create(tmp_path / "runs", "demo", 0)
    node = SimNode("clock", num_envs=6)
    folder.write_config("sim:\n  " + to_yaml(node).strip().replace("\n", "\n  ") + "\n", [])
    folder.metrics.write_text('{"iteration": 1, "rollout/success": 0.1}\n{"iteration": 2, "rollout/success": 0.2}\n')
    step = folder.checkpoints / "00000002"
    step.mkdir()
    run(checkpoint=str((step / "policy.safetensors").relative_to(tmp_path)), split="vision", video=Video(0, 0, 0))
    (out,) = folder.evaluations.iterdir()
    assert out.name.startswith("vision_") and "<polyline" in (out / "report.html").read_text()
    assert {episode["split"] for episode in json.loads((out / "report.json").read_text())["episodes"]} == {"vision"}


@pytest.mark.thorough
def test_equal_seeds_give_equal_reports_whatever_the_plan(kind, tmp_path):
    none = Video(0, 0, 0)
    for name, changes in {"a": {}, "b": {"plan": Plan(ranks=3)}, "c": {"seed": 1}}.items():
        run(out=str(tmp_path / name), video=none, **changes)
    episodes = [json.loads((tmp_path / name / "report.json").read_text())["episodes"] for name in "abc"]
    assert episodes[0] == episodes[1] != episodes[2]


def test_episodes_to_publish_are_others_with_other_noise_and_said(kind, tmp_path, monkeypatch, capsys):
    from embodied_rl.commands.compare import run as compare

    filmed, noise = [], []
    monkeypatch.setattr(command, "film_episodes", lambda *given, purpose, **counts: filmed.append(purpose) or [])
    play = command.evaluate_policy
    monkeypatch.setattr(
        command, "evaluate_policy", lambda *given, **batch: noise.append(given[8]) or play(*given, **batch)
    )
    for purpose in ("report", "publish"):
        run(episodes_for=purpose, out=str(tmp_path / purpose))
        printed = capsys.readouterr().out
        assert ("episodes to publish" in printed) == (purpose == "publish")
    found = [json.loads((tmp_path / purpose / "report.json").read_text()) for purpose in ("report", "publish")]
    seeds = [{episode["seed"] for episode in each["episodes"]} for each in found]
    assert [{seed >> 61 for seed in each} for each in seeds] == [{2}, {3}] and len(seeds[1]) == 20
    assert [each["metadata"]["episodes_for"] for each in found] == ["report", "publish"] == filmed == noise
    compare(CompareConfig(runs=(str(tmp_path / "report"), str(tmp_path / "publish")), out=str(tmp_path / "out")))
    assert "episodes_for is report and publish" in capsys.readouterr().out
    run(episodes_for="publish")
    assert next((tmp_path / "eval").iterdir()).name.startswith("eval_publish_")


def test_an_ablation_is_named_and_not_filmed(kind, tmp_path):
    run(ablate="image")
    (folder,) = (tmp_path / "eval").iterdir()
    assert folder.name.startswith("eval_without_image_") and not list(folder.glob("*.mp4"))
    assert json.loads((folder / "report.json").read_text())["metadata"]["ablate"] == "image"


def test_fewer_episodes_than_simulators_are_fine(kind, tmp_path):
    run(episodes=1, plan=Plan(ranks=4), out=str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "report.json").read_text())["success"]["episodes"] == 1


def test_a_file_that_names_no_simulator_asks_for_one(kind, monkeypatch):
    monkeypatch.setattr(evaluated_policies, "read_metadata", lambda file: SimpleNamespace(extra={}))
    with refuses("simulator-missing", "sim=<name>"):
        run()


def test_a_report_says_which_policy_ran_which_task(kind, tmp_path, monkeypatch, capsys):
    """And each part is run by its own policy alone."""
    actors = {}
    monkeypatch.setattr(command, "load_deployed", lambda text: actors.setdefault(text, kind.make_actor()))
    node = BenchmarkNode("home", "a book", (BenchmarkPart({"name": "clock"}, seeds=3),))
    policies = {"pick": "a.safetensors", "open": "b.safetensors", "pick blue": "random"}
    run(
        checkpoint=None,
        policies=policies,
        benchmark=node,
        episodes=None,
        video=Video(0, 0, 0),
        out=str(tmp_path / "out"),
    )
    found = json.loads((tmp_path / "out" / "report.json").read_text())["metadata"]
    assert [(each["policy"], each["tasks"]) for each in found["policies"]] == [
        ("a.safetensors", ["pick red"]), ("b.safetensors", ["open"]), ("random", ["pick blue"]),
    ]  # fmt: skip
    tasks = json.loads((tmp_path / "out" / "report.json").read_text())["tasks"]
    assert {name: each["success"]["episodes"] for name, each in tasks.items()} == {
        "pick red": 3, "open": 3, "pick blue": 3,
    }  # fmt: skip
    assert found["not_run"] == ["push red"] and found["complete"] is False
    seen = {w: {t for call in actor.calls for t in call.observation.instruction} for w, actor in actors.items()}
    assert seen == {"a.safetensors": {"pick red"}, "b.safetensors": {"open"}}
    printed = capsys.readouterr().out
    assert re.search(r"push red .* not run", printed) and "not all of it" in printed


def test_a_dry_run_finds_that_a_simulator_has_no_operator(kind, monkeypatch):
    """Of its class, which is not built then, or for its settings."""
    asked = EvalConfig(policy="expert", sim=SimChange("clock"), episodes=4, plan=Plan())
    monkeypatch.setattr(kind, "build", lambda num_envs: pytest.fail("it was built"))
    with refuses("operator-missing", "policy=expert"):
        command.check_evaluation(asked)

    def expert(self):
        raise UserError("sim.suite=other has no operator.", code="operator-missing")

    methods = dict.fromkeys(("expert", "snapshot", "restore"), expert)
    monkeypatch.setattr(kind, "simulator", type("Operated", (kind.simulator,), methods))
    monkeypatch.setattr(kind, "build", lambda num_envs: kind.simulator(num_envs))
    with refuses("operator-missing", "sim.suite=other"):
        command.check_evaluation(asked)
    monkeypatch.setattr(kind.simulator, "expert", lambda self: None)
    assert command.check_evaluation(asked)
