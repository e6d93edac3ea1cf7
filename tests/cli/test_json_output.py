"""`--json`: standard output is one JSON document, and the rest goes to standard error."""

import json

import pytest

from embodied_rl.cli.main import main
from embodied_rl.reports.report import Report

EVALUATION = ("asset:tabletop_base.safetensors", "sim=tabletop", "sim.num_envs=2", "episodes=2", "video.episodes=0")


def read(capfd, *words, code=0):
    assert main([*words, "--json"]) == code
    printed = capfd.readouterr()
    return json.loads(printed.out), printed.err


@pytest.mark.process
@pytest.mark.thorough
def test_an_evaluation_prints_its_report(tmp_path, capfd):
    found, said = read(capfd, "eval", *EVALUATION, f"out={tmp_path / 'out'}")
    report = Report.read(tmp_path / "out" / "report.json")
    assert found == json.loads(json.dumps(report.summarise())) | {"folder": str(tmp_path / "out")}
    assert "Written: " in said and "episodes" not in found
    again, _ = read(capfd, "eval", f"resume={tmp_path / 'out'}")
    assert again == found

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_bytes((tmp_path / "out" / "report.json").read_bytes())
    words = (str(tmp_path / "first"), str(tmp_path / "second"), f"out={tmp_path / 'compared'}")
    compared, _ = read(capfd, "compare", *words)
    assert [run["success"]["rate"] for run in compared["runs"]] == [report.success.rate] * 2
    (pair,) = compared["pairs"]
    assert (pair["episodes"], pair["only_first"], pair["only_second"], pair["p_value"]) == (2, 0, 0, 1.0)


@pytest.mark.process
@pytest.mark.thorough
def test_doctor_prints_every_check(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["doctor", "--json"])
    checks = json.loads(capfd.readouterr().out)
    assert {"name", "status", "found", "remedy"} == set(checks[0])
    assert not {check["status"] for check in checks} - {"ok", "warn", "fail"}


def test_lists(capfd):
    found, _ = read(capfd, "list")
    assert {"sims", "policies", "algos", "experiments"} <= set(found)
    (algos,) = read(capfd, "list", "algos")[0].values()
    assert "grpo" in {row[0] for row in algos} and algos == found["algos"]


@pytest.mark.parametrize(
    ("words", "name", "row"),
    [
        ("tasks", "tasks", ["press_button", "press", "tabletop"]),
        ("tasks tabletop", "tasks", ["press_button", "press", "tabletop"]),
        ("algos grpo", "grpo", ["algo.clip_low", "0.2", "the ratio stays above 1 - clip_low."]),
        ("rewards null", "null", None),
    ],
)
def test_a_choice_is_listed(words, name, row, capfd):
    found, _ = read(capfd, "list", *words.split())
    assert list(found) == [name] and (row in found[name] if row else found[name] == [])


def test_a_prompt_is_its_text(capfd):
    found, _ = read(capfd, "list", "prompts", "vlac_pair")
    assert main(["list", "prompts", "vlac_pair"]) == 0
    assert found == {"vlac_pair": capfd.readouterr().out}


@pytest.mark.parametrize("words", [["nonsense"], ["sims", "tabletop", "x"], ["algos", "grqo"]])
def test_what_is_not_there_is_not_listed(words, capfd):
    assert main(["list", *words, "--json"]) == 2 and not capfd.readouterr().out


@pytest.mark.parametrize("words", [["train"], ["eval", "x", "--dry-run"], ["compare", "a", "b", "-m"]])
def test_it_is_refused_where_it_does_nothing(words, capfd):
    assert main([*words, "--json"]) == 2
    assert "[option-without-effect]" in capfd.readouterr().err
