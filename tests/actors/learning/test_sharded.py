"""A learner spread over ranks: the same updates, whole weights for all who ask, checkpoints for any number of ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from embodied_rl.actors.learning import checkpoint, sharded
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.actors.learning.weights import publish_weights
from embodied_rl.runtime.ranks.collective import GlooRanks
from embodied_rl.runtime.ranks.launch import RankFailed, Ranks, launch_ranks
from tests.support import spreading
from tests.support.refusals import refuses

pytestmark = pytest.mark.thorough
State = dict[str, Tensor]
TAKEN_BACK = ("backbone.stem.mix.bias", "backbone.stem.heat.2.bias")
"""What a normalisation of single channels, or a softmax, takes back: its gradient is rounding, and Adam enlarges it."""


def largest_difference(found: State, wanted: State) -> float:
    assert found.keys() == wanted.keys()
    names = [name for name in wanted if wanted[name].numel() and name not in TAKEN_BACK]
    return max(float((found[name].double() - wanted[name].double()).abs().max()) for name in names)


def assert_equal(found: State, wanted: State) -> None:
    assert found.keys() == wanted.keys()
    assert not [name for name in wanted if not torch.equal(found[name], wanted[name])]


def compared(kind: str, **settings: Any) -> dict[str, Any]:
    return launch_ranks(spreading.compare, {"kind": kind, "settings": settings}, 2, timeout=200, threads=1)


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_sharded_is_replicated_and_one_process_with_all_rows() -> None:
    """Ranks have unequal rows; gradients are clipped over the whole norm."""
    result = compared("full", grad_clip=0.05)
    assert largest_difference(result["spread"], result["plain"]) < 1e-6
    for spread, plain in zip(*reversed(result["figures"]), strict=True):
        assert spread == pytest.approx(plain, rel=1e-3, abs=1e-4)
    torch.set_num_threads(1)
    parts = [spreading.rollouts_of(rank) for rank in range(2)]
    alone = spreading.learned("full", Ranks(), True, [spreading.joined(list(p)) for p in zip(*parts, strict=True)],
                              grad_clip=0.05)  # fmt: skip
    assert largest_difference(result["spread"], alone["weights"]) < 1e-5
    assert largest_difference(alone["weights"], spreading.copied(spreading.make())) > 5e-5, "nothing was learned"


def test_publishing_leaves_memory_that_a_sharded_learner_can_free() -> None:
    """PyTorch does not resize the storage of a tensor that NumPy has seen."""
    network = torch.nn.Linear(3, 2)
    publish_weights(network, 0, everything=True)
    assert all(parameter.untyped_storage().resizable() for parameter in network.parameters())


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_rank_holds_its_share_and_publishes_everything() -> None:
    result = compared("noise", micro_batch=5, level="chunk", entropy=0.1)
    assert largest_difference(result["spread"], result["plain"]) < 1e-6
    everywhere, whole, held = result["elements"]
    assert everywhere == whole and held < 0.6 * whole
    for name, value in result["spread"].items():
        assert result["published"][name] == value.numpy().tobytes(), name


@pytest.mark.process
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("kind", ["lora", "expert"])
def test_frozen_parameters_are_sharded_and_unchanged(kind: str) -> None:
    pytest.importorskip("peft" if kind == "lora" else "torch")
    result = compared(kind, minibatch=20)
    assert largest_difference(result["spread"], result["plain"]) < 1e-6
    before = spreading.copied(spreading.make(kind))
    changed = {name for name, value in before.items() if not torch.equal(value, result["spread"][name])}
    wanted = {name for name, p in spreading.make(kind).named_parameters() if p.requires_grad and p.numel()}
    assert changed and changed <= wanted


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_checkpoints_continue_to_the_bit_and_on_any_number_of_ranks(tmp_path: Path) -> None:
    two = launch_ranks(spreading.checkpointed, (str(tmp_path), 2), 2, timeout=200, threads=1)
    for part in ("weights", "moments"):
        assert_equal(two["resumed"][part], two["straight"][part])
    folder = tmp_path / "00000002"
    parts = sorted(path.name for path in (folder / "shards").iterdir())
    assert len(parts) == 2 and all(part.endswith(".safetensors") for part in parts)
    assert {f"shards/{part}" for part in parts} < checkpoint.read_state(folder)["sha256"].keys()
    assert not list(tmp_path.glob(".*"))
    one = spreading.taken_up(str(tmp_path), Ranks())
    assert not (tmp_path / "00000003" / "shards").exists()
    for part in ("weights", "moments"):
        assert_equal(one[part], two["stopped"][part])
    (folder / "shards" / parts[1]).write_bytes(b"")
    with refuses("checkpoint-damaged", parts[1], kind=CheckpointError):
        checkpoint.load_checkpoint(folder)


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_checkpoint_before_the_first_update_continues(tmp_path: Path) -> None:
    """A critic that learns first leaves the policy's optimiser without moments: none may be made up."""
    two = launch_ranks(spreading.checkpointed, (str(tmp_path), 0), 2, timeout=200, threads=1)
    assert not two["stopped"]["moments"] and two["straight"]["moments"]
    for part in ("weights", "moments"):
        assert_equal(two["resumed"][part], two["straight"][part])


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_pytorch_reads_the_shards(tmp_path: Path) -> None:
    """Its own reader finds each moment whole."""
    from torch.distributed import checkpoint as dcp

    two = launch_ranks(spreading.checkpointed, (str(tmp_path), 2), 2, timeout=200, threads=1)
    reader = dcp.HuggingFaceStorageReader(str(tmp_path / "00000002" / "shards"))
    wanted = {f"0/{name}": value for name, value in two["stopped"]["moments"].items()}
    stored = reader.read_metadata().state_dict_metadata
    found = {name: torch.full_like(wanted[name], torch.nan) for name in stored}
    dcp.load(found, storage_reader=reader, no_dist=True)
    assert found and all(torch.equal(found[name], wanted[name]) for name in found)


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_checkpoint_of_one_process_is_sharded_over_two(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    rollouts = spreading.rollouts_of(0)[:2]
    run = spreading.learned("full", Ranks(), True, rollouts)
    spreading.save(tmp_path, 2, run, Ranks())
    two = launch_ranks(spreading.taken_up, str(tmp_path), 2, timeout=200, threads=1)
    assert_equal(two["weights"], spreading.copied(run["actor"]))
    assert_equal(two["moments"], spreading.moments(run))


@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_a_rank_that_is_gone_is_the_first_cause() -> None:
    with pytest.raises(RankFailed, match=r"rank 1 .*killed by SIGKILL"):
        launch_ranks(spreading.lose, None, 2, timeout=200, threads=1)
    sharded.leave_group()


class Two(GlooRanks):
    """Rank 0 of two, of which the other says what it is told to."""

    def __init__(self, other: int) -> None:
        self.rank, self.size, self._other = 0, 2, other

    def gather(self, value: Any) -> list[Any]:
        return [value, (*value[:2], self._other)]


def test_a_sharded_learner_needs_a_gpu_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL connects GPUs, not processes; gradients of replicas go through the host then."""
    connected = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(sharded, "connect_group", lambda ranks, device: connected.append(device.type))
    network = torch.nn.Linear(2, 2, device="meta")  # the nearest thing to another device
    with refuses("sharded-needs-gpus", "torchrun"):
        sharded.shard_network(network, "sharded", Two(0))
    assert sharded.shard_network(network, "replicated", Two(0)) is None and not connected
    assert sharded.shard_network(network, "replicated", Two(1)) is None and connected == ["meta"]
    assert sharded.shard_network(torch.nn.Linear(2, 2), "replicated", Two(1)) is None and connected == ["meta"]
    assert sharded.shard_network(network, "sharded", Ranks()) is None, "a single process shares with nobody"
