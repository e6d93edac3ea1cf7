"""`embodied_rl.train`: a run from Python is the run of the command line."""

import pytest

import embodied_rl
from embodied_rl.interfaces.errors import RunFailed
from tests.support.refusals import refuses

pytestmark = [pytest.mark.thorough, pytest.mark.process]
SMALL = (
    "plan=colocated", "plan.ranks=1", "sim.num_envs=4", "train.iterations=1", "train.decisions=4", "train.eval_every=0",
    "train.eval_episodes=4", "train.final_episodes=7", "policy.checkpoint=null", "algo.minibatch=16", "algo.epochs=1",
)  # fmt: skip


def test_a_run_has_metrics_reports_and_films(tmp_path, capsys):
    run = embodied_rl.train("demo", *SMALL, f"run.root={tmp_path}", seed=3)
    assert run.path.parent == tmp_path / "demo" and run.path.name.endswith("_s3")
    (row,) = run.metrics
    assert row["iteration"] == 1 and row["total/decisions"] == 16
    assert run.before.success.episodes == run.report.success.episodes == 7
    assert run.films and all(film.stat().st_size for film in run.films)
    assert f"Run folder: {run.path}" in capsys.readouterr().out, "what the command prints is shown"
    assert embodied_rl.load_policy(run.path).spec.action_names


def test_what_the_command_refuses_is_raised_with_its_code(tmp_path):
    with refuses("key-unknown"):
        embodied_rl.train("demo", "algo.learning=1")
    with refuses("choice-unknown"):
        embodied_rl.train("nothing", f"run.root={tmp_path}")


@pytest.mark.parametrize("word", ["-m", "--dry-run", 5])
def test_options_of_the_command_line_and_other_things_are_no_overrides(word):
    with refuses("override-invalid", word):
        embodied_rl.train("demo", word)


def test_a_run_that_does_not_finish_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nif 'train' in sys.argv: print('gone'); os._exit(7)\n")
    with pytest.raises(RunFailed, match="ended with code 7"):
        embodied_rl.train("demo", *SMALL, f"run.root={tmp_path}")
