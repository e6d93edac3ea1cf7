"""A critic's file: what was written is read, to the bit; what is damaged or unknown is refused by name."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from embodied_rl.critic import critic_file
from embodied_rl.critic.critic_file import HEADER, load_critic, save_critic
from embodied_rl.interfaces.errors import UserError
from tests.support.critics import gather_some, make_critic
from tests.support.refusals import refuses


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_critic(make_critic(), tmp_path / "mine.safetensors", {"seed": 3})
    return tmp_path / "mine.safetensors"


def change(file: Path, header: Callable[[dict], Any], tensors: Callable[[dict], Any] = lambda tensors: None) -> None:
    with safe_open(file, "pt") as opened:
        said = json.loads(opened.metadata()[HEADER])
        held = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    header(said)
    tensors(held)
    save_file(held, file, {HEADER: json.dumps(said)})


def test_a_critic_comes_back_to_the_bit(file: Path) -> None:
    critic, episode = load_critic(file), gather_some()[0]
    assert critic.name == "mine" and critic.provenance == {"seed": 3}
    assert critic.identity.split()[1] == make_critic().identity.split()[1] != make_critic(1).identity.split()[1]
    asked = (episode.frames, episode.frames, [episode.goals[0].instruction] * len(episode.state), episode.state)
    assert np.array_equal(make_critic()(*asked).bins, critic(*asked).bins)


def test_the_action_expert_stays_behind(file: Path) -> None:
    with safe_open(file, "pt") as opened:
        names = list(opened.keys())
    assert any("stem" in name for name in names) and not any("expert" in name for name in names)


def nothing(_: dict) -> None:
    pass


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("header", "tensors", "named"),
    [
        (lambda h: h.update(surprise=1), nothing, "surprise"),
        (lambda h: h.pop("embodiment"), nothing, "embodiment"),
        (lambda h: h.update(format=9), nothing, "format 9"),
        (lambda h: h.update(policy="os.system"), nothing, "os.system"),
        (lambda h: h["critic"].update(hidden=9000), nothing, "hidden"),
        (lambda h: h["critic"].update(hidden=9), nothing, "head"),
        (lambda h: h["critic"].update(layers=2), nothing, "layers"),
        (lambda h: h["config"].update(hidden=10**7), nothing, "does not hold"),
        (lambda h: h["config"].update(width="wide"), nothing, "width"),
        (
            lambda h: h["embodiment"].update(image_size=[10**6 * 16, 10**6 * 16]),
            nothing,
            "does not hold|makes no network",
        ),
        (lambda h: h["embodiment"].update(cameras=[]), nothing, "mine.safetensors"),
        (nothing, lambda t: t.pop("head.1.weight"), "head.1.weight is missing"),
        (nothing, lambda t: t.update({"head.9.weight": torch.zeros(1)}), "head.9.weight has no place"),
        (nothing, lambda t: t.update({"squeeze.bias": torch.zeros(3)}), "squeeze.bias"),
        (nothing, lambda t: t.update({"squeeze.bias": torch.zeros(2).double()}), "squeeze.bias is F64"),
        (nothing, lambda t: t["squeeze.bias"].fill_(float("nan")), "squeeze.bias holds numbers that are none"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(file: Path, header: Any, tensors: Any, named: str) -> None:
    change(file, header, tensors)
    with pytest.raises(UserError, match=named) as refused:
        load_critic(file)
    assert "mine.safetensors" in str(refused.value), "the message names the file"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (pickle.dumps({"a": 1}), "checkpoint-is-pickle"),
        (b"", "checkpoint-damaged"),
        (b"\xff" * 64, "checkpoint-damaged"),
        ((2**40).to_bytes(8, "little") + b"{}", "checkpoint-damaged"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with refuses(code, "x.safetensors"):
        load_critic(tmp_path / "x.safetensors")


def test_a_policy_is_no_critic_and_a_missing_file_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "policy.safetensors", {"embodied_rl": "{}"})
    with refuses("checkpoint-not-a-critic"):
        load_critic(tmp_path / "policy.safetensors")
    with refuses("checkpoint-missing", "critic train out="):
        load_critic(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, '{"format": ' + "9" * 5000 + "}", "null"])
def test_a_header_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors", {HEADER: text})
    with pytest.raises(UserError, match=r"x\.safetensors"):
        load_critic(tmp_path / "x.safetensors")


def test_a_file_that_is_too_large_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(critic_file, "LARGEST_FILE", 1000)
    with refuses("checkpoint-damaged", "1000"):
        load_critic(file)
