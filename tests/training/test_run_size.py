"""Sizes of networks and rollouts, counted from shapes, equal those of the run; runs that do not fit are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.actors.learning.memory_budget import find_machine_bytes, format_bytes
from embodied_rl.actors.learning.update_memory import count_held
from embodied_rl.assembly import build
from embodied_rl.assembly.build import outline_actor
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.heads.head_inputs import HeadInputs
from embodied_rl.judge.heads.labels import list_columns
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import AlgoNode, PolicyNode, SamplerNode, SimNode, TrainConfig
from embodied_rl.training import cloning_checks, run_size
from embodied_rl.training.run_size import count_decision_bytes
from tests.support.refusals import refuses
from tests.support.running import REACHING, SMALL

POCKET = PolicyNode("pocket", options={"width": 16, "layers": 1, "heads": 2, "stem_channels": 8, "keypoints": 4})
PI0 = PolicyNode(
    "pi0", critic="prefix", train="expert",
    options={
        "width": 24, "layers": 1, "hidden": 24, "heads": 2, "head_dim": 6, "vocabulary": None, "expert_width": 16,
        "expert_hidden": 16, "vision_width": 16, "vision_layers": 1, "vision_hidden": 16, "vision_heads": 2, "patch": 8,
        "resolution": 16, "horizon": 3, "action_dim": 8, "state_dim": 8, "token_length": 10,
    },
)  # fmt: skip
BASE = PolicyNode("pocket", checkpoint="asset:tabletop_base.safetensors")
NODES = {
    "new weights": POCKET,
    "frozen features": replace(POCKET, freeze_perception=True),
    "prefix": PI0,
    "autocast": replace(PI0, autocast=True),
    "lora": replace(PI0, train="lora", precision="bfloat16"),
    "no cache": replace(PI0, cache_gigabytes=0.0),
    "policy file": BASE,
}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_the_outline_is_of_the_actor_that_is_built(node: PolicyNode) -> None:
    if node.name == "pi0":
        pytest.importorskip("transformers")
    if node.train == "lora":
        pytest.importorskip("peft")
    spec = SimulatorKind.find(SimNode("tabletop")).spec
    real = build.build_actor(node, SamplerNode(), spec, Needs(critic=True))
    real.keep_within(6, node.cache_gigabytes * 1e9)
    outlined = outline_actor(node, SamplerNode(), spec, Needs(critic=True))
    assert all(each.is_meta for each in outlined.parameters())
    shapes = [{name: (each.shape, each.dtype, each.requires_grad) for name, each in actor.named_parameters()}
              for actor in (real, outlined)]  # fmt: skip
    assert shapes[0] == shapes[1]
    assert count_held(outlined) == count_held(real)
    rollout = Rollout.allocate(real, 2, 3).tensors()
    rollout.pop("last_value")
    config = TrainConfig(SimNode("tabletop"), node, AlgoNode("ppo"))
    each = count_decision_bytes(outlined, 6, config) - torch.float32.itemsize
    assert each * 6 == sum(tensor.nbytes for tensor in rollout.values())


def test_columns_of_a_head_are_counted() -> None:
    spec = SimulatorKind.find(SimNode("tabletop")).spec
    config = TrainConfig(SimNode("tabletop"), POCKET, AlgoNode("ppo"))
    columns = list_columns(HeadInputs(spec, 16))
    without, noted = (
        count_decision_bytes(outline_actor(POCKET, SamplerNode(), spec, Needs(critic=True)), 6, config, each)
        for each in ({}, columns)
    )
    held = (torch.zeros(shape, dtype=dtype).nbytes for shape, dtype in columns.values())
    assert noted - without == sum(held) > 4000


def test_a_policy_file_of_other_sizes_is_found_without_reading_weights(tmp_path: Path) -> None:
    spec = SimulatorKind.find(SimNode("tabletop")).spec
    network, embodiment = build.build_backbone(POCKET, spec)
    network.register_parameter("stray", torch.nn.Parameter(torch.zeros(3)))
    from embodied_rl.checkpoints.policy_file import save_backbone

    file = tmp_path / "stray.safetensors"
    save_backbone(file, network, embodiment, "pocket", POCKET.options)
    with pytest.raises(UserError, match=r"another network: backbone\.stray has no place"):
        outline_actor(replace(POCKET, checkpoint=str(file)), SamplerNode(), spec, Needs(critic=True))


SIZES = [
    (["sim.num_envs=100000000"], "sim.num_envs=100000000", "[memory-rollout]"),
    (["train.decisions=1000000000", "sim.num_envs=2"], "Give train.decisions=", "[memory-rollout]"),
    (["algo.minibatch=1000"], "algo.minibatch=24", "[minibatch-too-large]"),
    (["algo.micro_batch=17"], "algo.micro_batch=null", "[micro-batch-out-of-range]"),
    (["plan=colocated", "plan.ranks=100000", "sim.num_envs=100000"], "plan.ranks=100000", "[memory-processes]"),
    (
        ["plan=split", "plan.ranks=1", "plan.workers=20000", "sim.num_envs=20000"],
        "plan.workers=20000",
        "[memory-processes]",
    ),
    (["plan=colocated", "plan.slices=16"], "sim.num_envs=8 cannot be divided", "Try sim.num_envs=32"),
    (["train.final_episodes=1000000000"], "train.final_episodes must be at most 1000000", ""),
    (["segments=2"], "segments=2 has an effect only with mode=stream", ""),
    (["staleness=2"], "staleness=2 has an effect only with mode=async", ""),
    (["policy.lora.rank=2"], "policy.lora.rank=2 has an effect only with policy.train=lora", ""),
    (["mode=stream", "segments=1000", "plan=colocated"], "train.decisions=3", "[decisions-not-divisible]"),
]


@pytest.mark.parametrize(
    ("word", "problem"),
    [("policy.width=1000000", "embodied-rl list policies pocket"), ("policy.horizon=1000000000", "parameters")],
)
def test_impossible_networks_are_refused_at_the_start(typed: Callable[..., Any], word: str, problem: str) -> None:
    kept = [each for each in (*SMALL, *REACHING) if each.partition("=")[0] != word.partition("=")[0]]
    code, _, err = typed("train", *kept, word)
    assert code == 2 and problem in err and "[memory-networks]" in err, err


@pytest.mark.thorough
@pytest.mark.parametrize(("words", "problem", "remedy"), SIZES, ids=[" ".join(words) for words, *_ in SIZES])
def test_impossible_sizes_are_refused(typed: Callable[..., Any], words: list[str], problem: str, remedy: str) -> None:
    given = {word.partition("=")[0] for word in words}
    kept = [word for word in (*SMALL, *REACHING) if word.partition("=")[0] not in given]
    code, _, err = typed("train", *kept, *words, "--dry-run")
    assert code == 2 and problem in err and remedy in err, err


def test_learned_noise_is_refused_where_it_must_be_fixed(typed: Callable[..., Any]) -> None:
    kept = [word for word in SMALL if "critic" not in word]
    code, _, err = typed("train", *kept, *REACHING, "algo=nft", "algo.sampler.name=flow_noise", "--dry-run")
    assert code == 2 and "[sampler-not-supported]" in err


def test_groups_of_one_are_refused(typed: Callable[..., Any]) -> None:
    kept = [word for word in SMALL if "critic" not in word]
    for size in ("0", "1"):
        code, _, err = typed("train", *kept, *REACHING, "algo=grpo", f"algo.group_size={size}", "--dry-run")
        assert code == 2 and "algo.group_size must be at least 2" in err


def test_a_default_minibatch_above_the_rollout_means_all_of_it(typed: Callable[..., Any]) -> None:
    code, out, err = typed("train", *(word for word in SMALL if "minibatch" not in word), *REACHING, "--dry-run")
    assert code == 0, err
    assert "memory" in out and "rollout" in out and "optimiser" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["algo.steps=0"], "[cloning-nothing-to-learn]"),
        (["algo.demonstrations=0"], "[cloning-no-demonstrations]"),
        (["algo.batch=0"], "algo.batch must be at least 1"),
        (["algo.demonstrations=1000000000"], "[memory-demonstrations]"),
        (["algo.frames=1000000000"], "algo.frames=1000000000"),
        (["sim.num_envs=1000000000"], "[memory-observations]"),
        (["algo.frames=2", "algo.auxiliary_names=[nowhere]"], "[perception-unknown-names]"),
        (["algo.frames=2", "algo.auxiliary_names=[]"], "[perception-other-names]"),
        (["eval_episodes=1000000000"], "eval_episodes must be at most"),
    ],
)
def test_cloning_is_checked_before_anything_is_recorded(
    typed: Callable[..., Any], words: list[str], expected: str, tmp_path: Path
) -> None:
    given = {word.partition("=")[0] for word in words}
    plain = (
        "algo.frames=0",
        "algo.steps=5",
        "algo.demonstrations=4",
        "algo.auxiliary_names=[]",
        "algo.finetune_steps=0",
    )
    code, _, err = typed("sft", *(word for word in plain if word.partition("=")[0] not in given), *words)
    assert code == 2 and expected in err, err
    assert not (tmp_path / "runs").exists()


def test_a_policy_without_a_separate_perception_is_refused() -> None:
    spec, network = SimulatorKind.find(SimNode("tabletop")).spec, torch.nn.Linear(1, 1)
    network.perception_parameters = list  # type: ignore[assignment]
    method = build.find_method(AlgoNode("sft", options={"frames": 0, "steps": 300}))
    config: Any = type("Config", (), {"policy": PolicyNode("plain")})
    with refuses("perception-missing", "algo.steps=300", "plain", "finetune_steps=300"):
        cloning_checks.check_perception(config, method.options, network, spec)  # type: ignore[arg-type]


def test_machine_memory_is_read_from_the_cgroup(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1000\n")
    assert find_machine_bytes(limit) == 1000
    limit.write_text("max\n")
    assert find_machine_bytes(limit) == find_machine_bytes(tmp_path / "absent") > 10**8


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (12_517_709_124, "12.5 GB"), (999_600, "1 MB"), (2e18, "2,000 PB")],
)
def test_sizes_are_formatted_with_units(size: float, text: str) -> None:
    assert format_bytes(size) == text


def test_networks_that_do_not_fit_are_refused(typed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_size, "find_machine_bytes", lambda: 200_000_000)
    kept = [word for word in SMALL if "width" not in word]
    code, _, err = typed("train", *kept, *REACHING, "policy.width=2048", "plan.ranks=2", "--dry-run")
    assert code == 2 and "on each of 2 ranks" in err and "plan.ranks=1" in err and "[memory-networks]" in err, err


def test_a_large_policy_without_a_checkpoint_can_be_looked_at_on_a_small_machine(
    typed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_size, "find_machine_bytes", lambda: 200_000_000)
    monkeypatch.setattr(run_size, "LARGEST_NEW", 1e6)
    code, out, err = typed("train", *SMALL, *REACHING, "policy.width=2048", "--dry-run")
    assert code == 0 and "missing" in out and "too small" in out and "this machine has 200 MB" in out, err
    code, out, err = typed("train", *SMALL, *REACHING, "policy.width=2048")
    assert code == 2 and "[memory-networks]" in err, err
