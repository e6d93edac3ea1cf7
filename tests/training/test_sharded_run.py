"""`plan.learner=sharded` in a whole run: it trains as a replicated one does, and continues to the bit."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.running import SMALL, TABLETOP, assert_learned_alike, assert_same, complete, figures, started

pytestmark = [pytest.mark.process, pytest.mark.thorough]

SHORT = (*SMALL, *TABLETOP, "train.iterations=2", "checkpoint.every=1", "train.eval_every=0", "algo.critic_warmup=0")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on two ranks."""
    return complete(tmp_path_factory.mktemp("sharded"), "train", *SHORT, "plan.learner=sharded", "plan=colocated")


def shards(run: Path) -> dict[str, bytes]:
    files = (run / "checkpoints" / "00000002" / "shards").iterdir()
    return {f"{file.name}/{name}": value.numpy().tobytes() for file in files for name, value in load_file(file).items()}


def test_a_sharded_run_is_a_replicated_one(sharded: Path, tmp_path: Path) -> None:
    """Up to rounding; ratios of the first minibatch are exactly 1 in both."""
    replicated = complete(tmp_path, "train", *SHORT)
    first, other = figures(sharded)[0], figures(replicated)[0]
    assert first == pytest.approx(other, rel=1e-3, abs=1e-4)
    found, wanted = (
        load_file(run / "checkpoints" / "00000001" / "policy.safetensors") for run in (sharded, replicated)
    )
    assert found.keys() == wanted.keys() and not any(name.startswith("_") for name in found)
    assert {name: value.shape for name, value in found.items()} == {n: value.shape for n, value in wanted.items()}


def test_a_sharded_run_learns_the_same_from_a_rollout_worker(sharded: Path, tmp_path: Path) -> None:
    """Rank 0 publishes its weights, and frees them afterwards."""
    apart = ("plan.learner=sharded", "plan=colocated", "plan.rollout_workers=1")
    assert_learned_alike(complete(tmp_path, "train", *SHORT, *apart), sharded)


def test_a_sharded_run_continues_to_the_bit(sharded: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "train" / sharded.name
    shutil.copytree(sharded, run)
    shutil.rmtree(run / "checkpoints" / "00000002")
    shutil.rmtree(run / "eval" / "after")
    (run / "checkpoints" / "last").write_text("00000001\n")
    (run / "checkpoints" / "best").unlink(missing_ok=True)
    (run / "report.html").unlink()
    with started(tmp_path, "train", "resume=last") as process:
        code, output = process.finish()
    assert code == 0, output
    assert_same(run, sharded)
    assert shards(run) == shards(sharded)
