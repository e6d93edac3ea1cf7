"""Policy files: what goes in comes out, and what must not be loaded is refused in words."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.assembly.build import load_backbone
from embodied_rl.checkpoints.policy_file import check_config, load_actor, load_network, save_actor, save_backbone
from embodied_rl.checkpoints.policy_format import make_header, read_metadata, verify_weights
from embodied_rl_policies.pocket import Pocket
from tests.support.refusals import refuses


@pytest.fixture
def small(make_actor):
    """The configuration of the small network, as stored."""
    return asdict(make_actor().backbone.config)


def build(config):
    """What makes a pocket network of a configuration for four model dimensions."""

    def make(metadata):
        embodiment, auxiliary_names = metadata.embodiment, metadata.auxiliary_names
        words, size = len(embodiment.vocabulary), embodiment.image_size
        length, states = embodiment.token_length, len(embodiment.state_names)
        return Pocket(Pocket.Config(**config), 4, states, embodiment.cameras, size, words, length, auxiliary_names)

    return make


def test_an_actor_comes_back_to_the_bit(tmp_path, make_actor, observe, keys, small) -> None:
    """Network, noise head and critic act and score as before."""
    first, second = make_actor("noise", "expert", seed=0), make_actor("noise", "expert", seed=1)
    save_actor(tmp_path / "actor.safetensors", first, "pocket", small, extra={"note": "übung"})
    metadata = load_actor(tmp_path / "actor.safetensors", second)
    a, b = (actor.act(observe(4), keys(4), explore=True) for actor in (first, second))
    assert np.array_equal(a.actions, b.actions)
    assert torch.equal(a.log_prob, b.log_prob)
    assert torch.equal(a.value, b.value)
    assert metadata.extra == {"note": "übung"}
    assert list(tmp_path.iterdir()) == [tmp_path / "actor.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_network_can_be_built_from_the_file(tmp_path, make_actor, observe, embodiment, small, dtype) -> None:
    """float32 is exact; float16 halves the file, loads as float32 and stays within its own rounding."""
    path, backbone = tmp_path / "base.safetensors", make_actor().backbone
    save_backbone(path, backbone, embodiment, "pocket", small, dtype=dtype)
    loaded, stored = load_network(path, build(small))
    assert stored == embodiment
    assert loaded.spec == backbone.spec
    for name, value in backbone.state_dict().items():
        other = loaded.state_dict()[name]
        assert other.dtype == torch.float32
        assert torch.equal(other, value.to(dtype).float())
    assert (path.stat().st_size < 3 * sum(p.numel() for p in backbone.parameters())) == (dtype == torch.float16)


def test_a_new_policy_file_has_the_usual_permissions_and_serves_as_a_base(tmp_path, make_actor, small) -> None:
    """Others may read it as far as the umask lets them; a run may give its network another sampler and critic."""
    path, actor = tmp_path / "actor.safetensors", make_actor("noise", "expert")
    (tmp_path / "other").touch()
    save_actor(path, actor, "pocket", small)
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode
    loaded, _ = load_network(path, build(small))
    assert torch.equal(loaded.words.weight, actor.backbone.words.weight)


@pytest.mark.thorough
def test_a_header_that_starts_like_a_pickle_is_read(tmp_path, make_actor, embodiment, small) -> None:
    """The first byte is the header's length modulo 256, 0x80 for some; that alone makes no pickle."""
    path, backbone, starts = tmp_path / "base.safetensors", make_actor().backbone, set()
    for length in range(0, 256, 8):
        save_backbone(path, backbone, embodiment, "pocket", small, extra={"pad": "x" * length})
        starts.add(path.read_bytes()[0])
        assert len(read_metadata(path).extra["pad"]) == length
    assert 0x80 in starts


def test_another_network_is_refused_by_key(tmp_path, make_actor, embodiment, small) -> None:
    """A different policy, a different configuration, and shapes the configuration does not explain."""
    path, backbone = tmp_path / "base.safetensors", make_actor().backbone
    save_backbone(path, backbone, embodiment, "pocket", small)
    metadata, wide = read_metadata(path), small | {"width": 64}
    check_config(path, metadata, "pocket", {"width": 32})
    with refuses("checkpoint-of-another-policy", "policy=pocket"):
        check_config(path, metadata, "pi0", {})
    with refuses("key-contradicts-checkpoint", "policy.width=32", "64"):
        check_config(path, metadata, "pocket", wide)
    with pytest.raises(CheckpointError, match=r"backbone\.action_in\.bias is \(32,\), expected \(64,\).*more"):
        load_network(path, build(wide))
    save_backbone(path, backbone, embodiment, "pocket", small | {"heights": 3})
    with pytest.raises(ValueError, match=r"policy\.heights"):
        load_backbone(path)


def test_a_refused_file_changes_nothing(tmp_path, make_actor, embodiment, small) -> None:
    """Another critic, then another embodiment: refused before the first weight is copied."""
    path, actor = tmp_path / "actor.safetensors", make_actor("hybrid", "privileged", seed=1)
    before = {name: value.clone() for name, value in actor.state_dict().items()}
    save_actor(path, make_actor("hybrid", "prefix"), "pocket", small)
    with pytest.raises(CheckpointError, match=r"critic\.norm\.weight has no place"):
        load_actor(path, actor)
    other = make_actor("hybrid", "privileged")
    other.embodiment = replace(embodiment, action_high=(0.5, 1.5, 0.1))
    save_actor(path, other, "pocket", small)
    with refuses("checkpoint-of-another-embodiment", "action_high"):
        load_actor(path, actor)
    assert all(torch.equal(value, before[name]) for name, value in actor.state_dict().items())


def test_damaged_foreign_and_pickled_files_are_refused(tmp_path, make_actor, embodiment, small) -> None:
    """Each is named, and a pickle is never opened."""
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    save_backbone(good, make_actor().backbone, embodiment, "pocket", small)
    bad.write_bytes(good.read_bytes()[:-100])
    with refuses("checkpoint-damaged", "bad.safetensors"):
        read_metadata(bad)
    torch.save({"weight": torch.zeros(1)}, bad)
    with refuses("checkpoint-is-pickle"):
        read_metadata(bad)
    save_file({"weight": torch.zeros(1)}, bad)
    with refuses("checkpoint-not-a-policy", "bad.safetensors"):
        read_metadata(bad)
    with refuses("checkpoint-missing", "none.safetensors"):
        read_metadata(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 5}, "this version reads formats 1, 2, 3, 4"),
        ({"config": None}, None),
        ({"embodiment": {}}, "entries"),
    ],
)
def test_headers_of_another_version_are_refused(tmp_path, make_actor, embodiment, small, change, message) -> None:
    """A newer format, a missing entry, an embodiment with other fields."""
    path = tmp_path / "base.safetensors"
    save_backbone(path, make_actor().backbone, embodiment, "pocket", small)
    with safe_open(path, "pt") as opened:
        header = json.loads(opened.metadata()["embodied_rl"])
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    header = {name: value for name, value in (header | change).items() if value is not None}
    save_file(tensors, path, make_header(header, tensors))
    with pytest.raises(ValueError, match=message or "damaged embodied_rl header: 'config'"):
        read_metadata(path)


def test_a_text_that_is_not_stored_as_bytes_is_damaged(tmp_path, make_actor, embodiment, small) -> None:
    path = tmp_path / "base.safetensors"
    save_backbone(path, make_actor().backbone, replace(embodiment, tokenizer="some"), "pocket", small)
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["tokenizer"] |= {"dtype": "BF16", "shape": [2]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    for read in (read_metadata, verify_weights):
        with refuses("checkpoint-damaged", path):
            read(path)


def test_a_file_without_checksums_loads_with_a_note(tmp_path, make_actor, embodiment, small) -> None:
    """Earlier versions wrote none. From format 3 on a file without them is damaged."""
    path = tmp_path / "base.safetensors"
    save_backbone(path, make_actor().backbone, embodiment, "pocket", small)
    with safe_open(path, "pt") as opened:
        header = json.loads(opened.metadata()["embodied_rl"])
    tensors, plain = load_file(path), {name: value for name, value in header.items() if "sha256" not in name}
    save_file(tensors, path, {"embodied_rl": json.dumps(plain)})
    with pytest.raises(CheckpointError, match=r"base\.safetensors.*sha256"):
        read_metadata(path)
    save_file(tensors, path, {"embodied_rl": json.dumps(plain | {"format": 2})})
    with pytest.warns(RuntimeWarning, match=r"base\.safetensors"):
        load_network(path, build(small))
