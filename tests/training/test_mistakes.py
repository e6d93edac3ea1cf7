"""Mistakes end a run with exit code 2 and one message, without a traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.support.running import REACHING, SMALL, TABLETOP, started

ALONE = (*SMALL, "plan.ranks=1")


def refused(result: tuple[int, str, str], *expected: str) -> None:
    code, _, err = result
    assert code == 2, err
    assert "embodied-rl: " in err and "Traceback" not in err
    for part in expected:
        assert part in err, err


def settings(changes: dict[str, str]) -> list[str]:
    """`ALONE` with other values."""
    kept = [setting for setting in (*ALONE, *REACHING) if setting.partition("=")[0] not in changes]
    return [*kept, *(f"{key}={value}" for key, value in changes.items())]


@pytest.fixture
def policy(reference: Path) -> str:
    return str(reference / "policy.safetensors")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ("train", "sim=tabletop", "sim.num_envs=8", "train.decisions=2"),
        ("sft", "sim=tabletop", "sim.num_envs=8", "algo=sft_vla", "algo.demonstrations=1", "eval_episodes=0"),
    ],
    ids=lambda words: words[0],
)
def test_a_large_network_without_a_checkpoint(typed: Callable[..., Any], words: tuple[str, ...]) -> None:
    """Random weights never succeed, which a dry run prints. Small networks may start from random weights."""
    refused(typed(*words, "policy=smolvla"), "policy.checkpoint=null")
    code, out, _ = typed(*words, "policy=smolvla", *DRY)
    assert code == 0 and "missing" in out and "policy.checkpoint=null" in out
    code, out, _ = typed(*words, "policy=pi0_tiny", "policy.critic=prefix", *DRY)
    assert code == 0 and "missing" not in out


@pytest.mark.thorough
@pytest.mark.process
def test_a_checkpoint_of_another_network(
    typed: Callable[..., Any], reference: Path, policy: str, tmp_path: Path
) -> None:
    other = [
        setting for setting in (*ALONE, *TABLETOP) if "width" not in setting and "policy.checkpoint" not in setting
    ]
    result = typed("train", *other, f"policy.checkpoint={policy}", "policy.width=32")
    refused(result, "was made with policy.width=16, not 32: leave policy.width out")
    assert not (tmp_path / "runs").exists(), "nothing was started"


@pytest.mark.thorough
@pytest.mark.process
def test_a_checkpoint_of_another_robot(typed: Callable[..., Any], policy: str) -> None:
    refused(typed("train", *settings({"policy.checkpoint": policy})), "The policy sees camera 'front'")


@pytest.mark.thorough
@pytest.mark.process
def test_a_finished_run_is_not_resumed(typed: Callable[..., Any], reference: Path) -> None:
    refused(typed("train", f"resume={reference}"), f"{reference} is finished: 6 of 6 iterations", "policy.checkpoint=")
    refused(typed("train", f"resume={reference}", "train.iterations=6"), f"{reference} is finished", "<more than 6>")
    refused(typed("train", f"resume={reference}", "train.iterations=5"), "train.iterations=5", "[run-shortened]")


@pytest.mark.thorough
def test_nothing_to_resume(typed: Callable[..., Any], tmp_path: Path) -> None:
    refused(typed("train", "resume=last"), "No training run below runs (run.root)")
    refused(typed("train", f"resume={tmp_path}"), f"No run in {tmp_path}")
    refused(typed("train", "resume=latest"), "resume=latest", "'last'")


@pytest.mark.thorough
def test_groups_that_two_ranks_would_share(typed: Callable[..., Any], tmp_path: Path) -> None:
    grpo = [setting for setting in SMALL if "critic" not in setting]
    result = typed("train", *grpo, "algo=grpo", "algo.group_size=8")
    refused(result, "algo.group_size=8", "sim.num_envs=16", "[envs-not-divisible]")
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_groups_on_one_robot_are_refused_with_a_way_out_that_works(typed: Callable[..., Any]) -> None:
    for words in ((), ("algo.group_size=2",), ("sim.num_envs=8",)):
        refused(
            typed("train", "sim=robot", "algo=grpo", "plan=auto", *words, "--dry-run"),
            "groups-not-supported",
            "algo=filtered",
        )
    assert typed("train", "sim=robot", "algo=filtered", "plan=auto", "--dry-run")[0] == 0


@pytest.mark.thorough
def test_keys_that_an_algorithm_does_without_are_named(typed: Callable[..., Any]) -> None:
    found, _, err = typed("train", "experiment=tabletop", "algo=awr", "--dry-run")
    told = "algo=awr does without these of experiment=tabletop: epochs, auxiliary, lr_final, noise_final, "
    assert found == 0 and err == f"{told}noise_decay_from.\n"


@pytest.mark.thorough
def test_a_simulator_that_returns_nan_is_named(typed: Callable[..., Any]) -> None:
    result = typed("train", *settings({"sim.nan_episode": "5"}))
    refused(result, "NaN or infinity in the simulator's state: environment 5, decision 1 of episode 5")


@pytest.mark.thorough
@pytest.mark.process
def test_a_simulator_of_another_rank_that_returns_nan_is_named(plugin_path: str, tmp_path: Path) -> None:
    """Environments 4 to 7 are those of rank 1."""
    arguments = ("train", *SMALL, *REACHING, "sim.nan_episode=6")
    with started(tmp_path, *arguments, PYTHONPATH=plugin_path) as process:
        code, output = process.finish()
    assert code == 2
    assert "NaN or infinity in the simulator's state: environment 6, decision 1 of episode 6" in output
    assert "Traceback" not in output


@pytest.mark.thorough
@pytest.mark.process
def test_a_run_folder_that_is_removed_is_named_at_the_next_write(plugin_path: str, tmp_path: Path) -> None:
    """The folder is not created again, and the run ends."""
    arguments = ("train", *settings({"train.iterations": "100000", "sim.marks": ".", "sim.hold": "4"}))
    with started(tmp_path, *arguments, PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: process.iterations() >= 1), process.output()
        (tmp_path / "runs").rename(tmp_path / "elsewhere")
        (tmp_path / "go").touch()
        code, output = process.finish()
    assert code == 2 and "Traceback" not in output, output
    assert "metrics.jsonl: it, or its folder, is gone." in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
@pytest.mark.process
def test_a_simulator_that_does_not_start_is_named(typed: Callable[..., Any]) -> None:
    """It fails at its deadline, without another try, and no process remains."""
    apart = {"plan": "split", "plan.ranks": "1", "plan.start_timeout": "5", "sim.gate": "never"}
    before = set(psutil.Process().children(recursive=True))
    code, _, err = typed("train", *settings(apart))
    assert code == 1 and "Traceback" not in err
    assert "embodied-rl: evaluation simulator 0 (pid " in err and "no answer within 5 s" in err
    assert "during 'start'. If it only needs longer to start, raise plan.start_timeout." in err
    assert "waiting for a licence" in err and "continue with: embodied-rl train resume=runs/" in err
    assert not set(psutil.Process().children(recursive=True)) - before


@pytest.mark.thorough
def test_a_policy_that_returns_nan_is_named(typed: Callable[..., Any]) -> None:
    """A learning rate that sends the weights to infinity in the only step of an iteration."""
    wild = {"algo.lr": "1e30", "algo.epochs": "1", "algo.minibatch": "24", "algo.warmup_updates": "0"}
    refused(typed("train", *settings(wild)), "NaN or infinity in the policy's actions: environment 0, decision ")


@pytest.mark.thorough
def test_a_gradient_that_is_nan_is_named(typed: Callable[..., Any]) -> None:
    wild = {"algo.lr": "1e30", "algo.epochs": "3", "algo.minibatch": "8", "algo.warmup_updates": "0"}
    refused(typed("train", *settings(wild)), "The gradient is not a number: lower algo.lr")


DRY = ("--dry-run",)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["curriculum=weighted", "curriculum.weights.lefft=3"], "unknown family or task 'lefft'. Did you mean 'left'?"),
        (["curriculum=weighted", "curriculum.weights.go=0"], "curriculum.weights leaves no task to draw"),
        (
            ["curriculum=weighted", "curriculum.weights.go=-1"],
            "curriculum.weights.go must be a number of at least 0, not -1",
        ),
        (["curriculum=success_rate", "curriculum.floor=0"], "curriculum.floor must be above 0, not 0.0"),
        (["curriculum=success_rate", "curriculum.rate=1.5"], "curriculum.rate must be above 0 and at most 1, not 1.5"),
        (["curriculum=learning_progress", "curriculum.uniform_share=0"], "curriculum.uniform_share must be above 0"),
        (["train.late_starts=1.5"], "train.late_starts must be at most 1"),
        (["train.late_starts=0.5", "train.late_decisions=99"], "[late-starts-too-early] train.late_decisions=99"),
        (["policy.executed=99"], "policy.executed"),
        (["algo=sft"], "[algorithm-wrong-command]"),
        (["seed=18446744073709551616"], "seed must be at most 18446744073709551615, not 18446744073709551616"),
        (["run.experiment=a/b"], "run.experiment must be a plain name"),
    ],
)
def test_a_dry_run_checks_the_configuration(typed: Callable[..., Any], words: list[str], expected: str) -> None:
    kept = [word for word in (*ALONE, *REACHING) if not (words[0] == "algo=sft" and word.startswith("algo."))]
    refused(typed("train", *kept, *words, *DRY), expected)


@pytest.mark.thorough
@pytest.mark.process
def test_a_dry_run_checks_files(typed: Callable[..., Any], policy: str, tmp_path: Path) -> None:
    cut, pickled = tmp_path / "cut.safetensors", tmp_path / "pickled.safetensors"
    cut.write_bytes(Path(policy).read_bytes()[:-10])
    torch.save({"weight": torch.zeros(2)}, pickled)
    refused(typed("train", *settings({"policy.checkpoint": str(cut)}), *DRY), "cut.safetensors is damaged")
    refused(typed("train", *settings({"policy.checkpoint": str(pickled)}), *DRY), "pickled.safetensors is a pickle")
    refused(typed("train", "resume=last", *DRY), "nothing to resume")
    refused(typed("eval", f"checkpoint={cut}", *DRY), "cut.safetensors is damaged")
    refused(typed("eval", f"checkpoint={policy}", "split=vison", *DRY), "unknown split 'vison'. Did you mean 'vision'")
    refused(typed("compare", "nope", "nothing", *DRY), "nope is not there: give the folder of a run")
    refused(typed("play", "policy=exprt", *DRY), "Did you mean 'expert'?")
    refused(typed("sft", "algo=flow_sde", *DRY), "algo.name=ppo", "[algorithm-wrong-command]")
    refused(typed("sft", "policy.device=nowhere", *DRY), "policy.device=nowhere", "cuda")
    refused(typed("sft", "policy.precision=bfloat16", *DRY), "use policy.train=expert or lora")
    refused(typed("compare", str(cut), policy, *DRY), "is not a report")


@pytest.mark.process
def test_a_damaged_configuration_is_named(typed: Callable[..., Any], reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "train" / reference.name
    shutil.copytree(reference, run)
    (run / "config.yaml").write_text("train: [1\n  x: {")
    refused(typed("train", "resume=last"), "config.yaml is damaged")


@pytest.mark.thorough
@pytest.mark.process
def test_a_run_without_its_configuration(typed: Callable[..., Any], reference: Path, tmp_path: Path) -> None:
    shutil.copytree(reference, tmp_path / "run")
    (tmp_path / "run" / "config.yaml").unlink()
    refused(typed("train", "resume=run"), "config.yaml")
