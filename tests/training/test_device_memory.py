"""Runs on a GPU: device, precision, micro-batch and memory are chosen before anything starts.

No GPU is needed: torch's questions about CUDA are answered by a stand-in, and memory is counted from shapes. What a
GPU's allocator hands out beyond that is not tested here.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.actors import placement
from embodied_rl.actors.learning import update_memory
from embodied_rl.actors.learning.memory_budget import find_free_bytes
from embodied_rl.actors.learning.update_memory import UpdateMemory
from embodied_rl.commands import train
from embodied_rl.interfaces.backbone import PolicyInput
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.ranks.collective import choose_gpu
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import AlgoNode, PolicyNode, RunConfig, SimNode, TrainConfig
from embodied_rl.schema.config_file import load_config
from embodied_rl.training import device_memory, extension, predicted_hours
from tests.support.environments import python_of
from tests.support.running import REACHING, SMALL

COUNTED: dict[Any, UpdateMemory] = {}
FULL_SIZE = (
    "policy=pi05", "policy.vocabulary=257152", "sim=tabletop", "plan=colocated", "plan.ranks=1",
)  # fmt: skip


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that makes torch say that there are GPUs with so many GB (10⁹ bytes), all free."""

    def there(gigabytes: float, count: int = 1) -> None:
        memory = int(gigabytes * 1e9)
        answers = {
            "is_available": lambda: True,
            "device_count": lambda: count,
            "is_bf16_supported": lambda including_emulation=True: True,
            "mem_get_info": lambda device=None: (memory, memory),
            "get_device_name": lambda device=None: "a stand-in",
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    return there


@pytest.fixture
def tf32() -> Iterator[tuple[Any, ...]]:
    """Torch's settings of TF32, which are as before afterwards."""
    settings: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [each.allow_tf32 for each in settings]
    yield settings
    for each, value in zip(settings, before, strict=True):
        each.allow_tf32 = value


@pytest.fixture(autouse=True)
def counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the update of each configuration once in this module, as full size takes seconds."""

    def count(actor: Any, autocast: bool) -> UpdateMemory:
        key = actor.keep, autocast, *((each.dtype, each.requires_grad) for each in actor.parameters())
        if key not in COUNTED:
            COUNTED[key] = update_memory.count_update(actor, autocast)
        return COUNTED[key]

    monkeypatch.setattr(device_memory, "count_update", count)


def read_memory(text: str) -> tuple[int, int, float, float]:
    """Return micro-batch, minibatch, peak and budget, in GB, of the line about the device."""
    words = " ".join(text.split())
    found = re.search(r"micro-batches of (\d+) of (\d+) rows, about ([\d.]+) GB of the ([\d.]+) GB", words)
    assert found, text
    return int(found[1]), int(found[2]), float(found[3]), float(found[4])


def test_auto_is_the_cpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    node = placement.resolve_placement(PolicyNode("pocket"))
    assert (node.device, node.autocast) == ("cpu", False)
    assert "idle" not in placement.describe_placement(node)


def test_auto_is_the_gpu_with_bfloat16_products(a_gpu: Callable[[float], None]) -> None:
    a_gpu(141)
    node = placement.resolve_placement(PolicyNode("pocket"))
    assert (node.device, node.autocast) == ("cuda", True)
    assert placement.resolve_placement(PolicyNode("pocket", autocast=False)).autocast is False
    text = placement.describe_placement(node)
    assert "a stand-in" in text and "bfloat16" in text and "TF32" in text
    assert "policy.device=cuda" in placement.describe_placement(PolicyNode("pocket", device="cpu"))


@pytest.mark.parametrize("autocast", [True, False])
def test_tf32_follows_the_precision(a_gpu: Callable[[float], None], tf32: Any, autocast: bool) -> None:
    a_gpu(24)
    for each in tf32:
        each.allow_tf32 = not autocast
    network: Any = type("Network", (), {"to": lambda self, device: device})()
    placement.place_network(network, PolicyNode("pocket", autocast=autocast))
    assert [each.allow_tf32 for each in tf32] == [autocast, autocast]


def test_inputs_are_copied_to_a_gpu_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        asked.append((device.type, non_blocking))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: asked.append(("pinned", True)) or tensor)
    monkeypatch.setattr(torch.Tensor, "to", to)
    inputs = PolicyInput({"front": torch.zeros(1, 4, 4, 3)}, torch.zeros(1, 2), torch.zeros(1, 2))
    inputs.to(torch.device("cuda"))
    assert asked == [("pinned", True), ("cuda", True)] * 3
    asked.clear()
    inputs.to(torch.device("cpu"))
    assert asked == [("cpu", False)] * 3


def test_ranks_share_gpus_in_turn(a_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks on two GPUs: two share one. A numbered device is shared by all."""
    a_gpu(100, count=2)
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for rank in range(3):
        choose_gpu(rank)
    assert chosen == [0, 1, 0]
    assert find_free_bytes(torch.device("cuda"), 3) == pytest.approx(0.8 * 100e9 / 2)
    assert find_free_bytes(torch.device("cuda:1"), 3) == pytest.approx(0.8 * 100e9 / 3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("gigabytes", "words", "least"),
    [
        pytest.param(141, (), 512, marks=pytest.mark.slow), pytest.param(80, (), 512, marks=pytest.mark.slow),
        pytest.param(40, (), 100, marks=pytest.mark.slow), (24, (), 50),
    ],
)  # fmt: skip
def test_pi05_at_full_size_fits_one_gpu_by_default(
    typed: Callable[..., Any], a_gpu: Callable[[float], None], gigabytes: float, words: tuple[str, ...], least: int
) -> None:
    pytest.importorskip("transformers")
    a_gpu(gigabytes)
    code, out, err = typed("train", *FULL_SIZE, *words, "--dry-run")
    assert code == 0, err
    micro_batch, minibatch, peak, budget = read_memory(out)
    assert minibatch == 512 and least <= micro_batch <= 512
    assert peak <= budget <= 0.805 * gigabytes
    assert micro_batch == 512 or peak > 0.95 * budget, "no larger micro-batch fits"


@pytest.mark.thorough
@pytest.mark.process
def test_a_recipe_is_described_without_its_checkpoint(typed: Callable[..., Any]) -> None:
    pytest.importorskip("transformers")
    python_of("libero")
    code, out, err = typed("train", "recipe=smolvla_libero_spatial", "--dry-run")
    assert code == 0, err
    rows = {line.split()[0] for line in out.splitlines() if line[:1].strip()}
    assert {"memory", "missing", "hours", "source"} <= rows and "141 GB" in out


REFUSED = [
    (24, ("policy.precision=float32",), "policy.precision=bfloat16"),
    pytest.param(40, ("algo.micro_batch=512",), "algo.micro_batch=512", marks=pytest.mark.slow),
    pytest.param(40, ("policy.train=full",), "policy.train=expert or lora", marks=pytest.mark.slow),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("gigabytes", "words", "named"), REFUSED)
def test_a_run_that_does_not_fit_is_described_with_settings_that_do(
    typed: Callable[..., Any], a_gpu: Callable[[float], None], gigabytes: float, words: tuple[str, ...], named: str
) -> None:
    """A dry run without a checkpoint may be for another machine, and describes what does not fit."""
    pytest.importorskip("transformers")
    a_gpu(gigabytes)
    code, out, err = typed("train", *FULL_SIZE, *words, "--dry-run")
    described = " ".join(out.partition("\ntoo small")[2].split())
    assert code == 0 and named in described and "policy.device=cuda" in described, (out, err)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["filtered", "awr", "recap", "nft", "dsrl", "sac"])
def test_every_method_is_counted_on_a_gpu(
    typed: Callable[..., Any], a_gpu: Callable[[float], None], method: str
) -> None:
    """The replay storage of `sac` also holds an entry of the trace, whose shape is computed under autocast."""
    a_gpu(10)
    words = ("algo=dsrl", "algo.variant=sac") if method == "sac" else (f"algo={method}",)
    code, out, err = typed("train", "experiment=demo", *words, "plan=colocated", "plan.ranks=1", "--dry-run")
    assert code == 0 and "device      cuda (a stand-in)" in out, err


@pytest.mark.thorough
def test_a_run_stores_its_choice_and_continues_where_no_gpu_is(
    typed: Callable[..., Any], a_gpu: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The run begins on the stand-in for a GPU and stops before it computes there; it continues on the CPU."""
    a_gpu(10)
    monkeypatch.setattr(train.runtimes, "launch_ranks", lambda *_: None)
    monkeypatch.setattr(RunFolder, "removed_if_bare", lambda folder: nullcontext())
    code, out, err = typed("train", *SMALL, *REACHING, "plan=colocated", "plan.ranks=1")
    assert code == 0 and "micro-batches of 16 of 16" in " ".join(out.split()), err
    (config,) = (tmp_path / "runs").rglob("config.yaml")
    stored = load_config(TrainConfig, config)
    assert (stored.policy.device, stored.policy.autocast, stored.algo.options["micro_batch"]) == ("cuda", True, 16)
    monkeypatch.undo()
    monkeypatch.setattr(train.runtimes, "launch_ranks", lambda config, *_: print(config.policy))
    code, out, err = typed("train", f"resume={config.parent}")
    assert code == 0 and "policy.device=cuda" in out and "device='cpu'" in out and "autocast=True" in out, out + err
    assert load_config(TrainConfig, config) == stored


def test_a_resumed_run_is_moved_by_policy_device(a_gpu: Callable[[float], None]) -> None:
    """To a GPU, where the first update measures how many rows fit; without the key it stays where it began."""
    a_gpu(10)
    old = TrainConfig(SimNode("tabletop"), PolicyNode("pocket", device="cpu", autocast=False), AlgoNode("ppo"))
    assert extension.move_device(old, old) == old
    typed = replace(old, policy=PolicyNode("pocket", device="cuda"), run=RunConfig(overrides=("policy.device=cuda",)))
    moved = extension.move_device(old, typed)
    assert (moved.policy.device, moved.policy.autocast, moved.algo.options["micro_batch"]) == ("cuda", False, "auto")


@pytest.mark.thorough
def test_a_machine_without_a_gpu_lists_what_fits_gpus(
    typed: Callable[..., Any], a_gpu: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same micro-batches as a run on such a GPU would choose; one of them holds no more than the parameters."""
    monkeypatch.setattr(train, "LARGEST_NEW", 1e6)
    sizes = (0.02, 0.06, 0.12, 5)
    monkeypatch.setattr(device_memory, "GPUS", sizes)
    words = ("experiment=demo", "plan=colocated", "plan.ranks=1", "--dry-run")
    code, out, err = typed("train", *words)
    described = re.findall(r"([\d.]+) GB: (?:micro-batches of (\d+)|too small)", " ".join(out.split()))
    assert code == 0 and [float(size) for size, _ in described] == list(sizes), (out, err)
    assert not described[0][1] and len({rows for _, rows in described}) == 4
    for size, rows in described[1:]:
        a_gpu(float(size))
        code, out, err = typed("train", *words)
        assert code == 0 and f"micro-batches of {rows} of 512 rows" in " ".join(out.split()), (size, out, err)


@pytest.mark.thorough
def test_hours_follow_from_counted_operations(typed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations × decisions × environments × (a decision + epochs × a row), at 35 % of 10¹⁰ operations a second."""
    monkeypatch.setattr(train, "LARGEST_NEW", 1e6)
    monkeypatch.setattr(device_memory, "GPUS", (0.02, 5))
    monkeypatch.setattr(predicted_hours, "CARDS", {0.02: ("small", 1e10), 5: ("large", 1e10)})
    sizes = ("train.iterations=7000", "train.decisions=32", "sim.num_envs=16", "algo.epochs=3")
    words = ("experiment=demo", "algo.minibatch=512", *sizes, "--dry-run")
    code, out, err = typed("train", *words)
    said = " ".join(out.split())
    found = re.search(
        r"assumption\): large ([\d,]+)\. ([\d.e-]+) · 10¹² operations a decision, ([\d.e-]+) · 10¹² a row", said
    )
    assert code == 0 and found, (out, err)
    hours, decision, row = (float(each.replace(",", "")) for each in found.groups())
    expected = 7000 * 32 * 16 * (decision + 3 * row) * 1e12 / (0.35 * 1e10) / 3600
    assert hours == pytest.approx(expected, rel=0.01, abs=0.5) and hours > 20
    code, out, err = typed("train", *words, "policy.autocast=false")
    assert code == 0 and "not known for products in float32" in " ".join(out.split())
    groups = ("experiment=demo", "algo=grpo", "train.iterations=70000", "sim.num_envs=16", "--dry-run")
    code, out, err = typed("train", *groups)
    found = re.search(
        r"assumption\): large ([\d,]+)\. ([\d.e-]+) · 10¹² .*?, ([\d.e-]+) · 10¹² a", " ".join(out.split())
    )
    assert code == 0 and found, (out, err)
    hours, decision, row = (float(each.replace(",", "")) for each in found.groups())
    node = SimNode("tabletop")
    longest, epochs = -(-SimulatorKind.find(node).spec.horizon // 5), 2  # five control steps of a decision
    expected = 70_000 * 16 * longest * (decision + epochs * row) * 1e12 / (0.35 * 1e10) / 3600
    assert hours == pytest.approx(expected, rel=0.01, abs=0.5) and hours > 20
