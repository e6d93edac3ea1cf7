"""The speed that a run prints at its end."""

from embodied_rl.training.final_report import summarise_pace

BUSY = {"time/busy/simulators": 0.4, "time/busy/policy": 0.25, "time/busy/learner": 0.3}


def test_the_prediction_stands_beside_the_median() -> None:
    rows = [{"time/iteration": seconds, "time/iteration_predicted": 2.0, **BUSY} for seconds in (1.0, 2.5, 9.0)]
    (line,) = summarise_pace(rows)
    assert "took 2.50 s (2.00 s predicted, +25%); busy: simulators 40%, policy 25%, learner 30%" in line


def test_without_a_prediction_only_measurements_are_printed() -> None:
    (line,) = summarise_pace([{"time/iteration": 1.0, **BUSY}])
    assert "took 1.00 s; busy" in line


def test_runs_of_older_versions_say_nothing() -> None:
    assert summarise_pace([{"time/iteration": 1.0}]) == summarise_pace([]) == []
