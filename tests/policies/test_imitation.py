"""ACT and Diffusion Policy against lerobot's own, whose results `tests/parity/lerobot_imitation.py` recorded."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from embodied_rl import load_policy
from embodied_rl.actors.imitation import ImitationActor
from embodied_rl.cli.main import main
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.training.algorithms.imitation.cloning import SFT, CloningBatch
from embodied_rl_policies.imitation.noise_schedule import NoiseSchedule
from tests.support import imitation_sizes as sizes
from tests.support import small_imitation as small
from tests.support.double_precision import in_float64
from tests.support.using_checkpoints import Attached, save

CLOSE = {"act": 1e-5, "diffusion": 2e-4}
"""In float32. lerobot's own actions are up to 4e-5 from those in float64, as denoising enlarges rounding errors."""
KINDS = ("act", "diffusion")
_KEPT: dict[str, Attached] = {}


@pytest.fixture
def attached(request: pytest.FixtureRequest, tmp_path: Path) -> Attached:
    """The network of a variant, and its robot; read once."""
    variant = request.param
    if variant not in _KEPT:
        _KEPT[variant] = small.attach(small.folder(tmp_path, variant), sizes.VARIANTS[variant][0])
    return _KEPT[variant]


@pytest.mark.parametrize("variant", sizes.VARIANTS)
def test_actions_losses_and_tensors_are_lerobots(variant: str, tmp_path: Path) -> None:
    """Every option that changes the network, from images and state to actions, both in the robot's units."""
    made = small.folder(tmp_path, variant)
    attached = small.attach(made, kind := sizes.VARIANTS[variant][0])
    expected = small.GOLDEN[f"{variant}/actions"]
    found = small.actions(attached)[:, : expected.shape[1]]
    assert (found - expected).abs().max() <= CLOSE[kind]
    assert float(small.loss(attached).detach()) == pytest.approx(float(small.GOLDEN[f"{variant}/loss"]), rel=1e-5)
    with in_float64():
        attached[0].double()
        exact = small.actions(attached)[:, : expected.shape[1]]
    assert (exact - small.GOLDEN[f"{variant}/actions64"]).abs().max() <= 1e-6
    listed = sorted(f"{k} {list(v.shape)} {v.dtype}" for k, v in load_file(made / "model.safetensors").items())
    assert hashlib.sha256("\n".join(listed).encode()).hexdigest() == small.DIGESTS[variant]


@pytest.mark.parametrize("attached", KINDS, indirect=True)
def test_a_rows_actions_follow_from_its_observations_and_keys_alone(attached: Attached) -> None:
    """In any batch, up to rounding; and noise matters where a policy takes any."""
    actor = ImitationActor(*attached).eval()
    keys = NoiseKeys(3, np.arange(sizes.ROWS), np.array([0, 4, 9]))
    earlier, now = [small.observe(0)] * (actor.observations - 1), small.observe(1)
    whole = actor.infer(now, keys, earlier=earlier)
    assert whole.shape == (sizes.ROWS, attached[1].executed, sizes.ACTION_DIM) and whole.dtype == np.float32
    alone = NoiseKeys(3, keys.episode[[1]], keys.decision[[1]])
    single = actor.infer(now.select([1]), alone, earlier=[each.select([1]) for each in earlier])
    np.testing.assert_allclose(single[0], whole[1], atol=1e-4)
    assert np.array_equal(actor.infer(now, keys, earlier=earlier), whole)
    other = actor.infer(now, NoiseKeys(4, keys.episode, keys.decision), earlier=earlier)
    assert np.array_equal(other, whole) == (not attached[0].noise_shape)


@pytest.mark.parametrize("attached", KINDS, indirect=True)
def test_what_it_cannot_do_is_refused(attached: Attached) -> None:
    actor, seen = ImitationActor(*attached).eval(), small.observe(0)
    with pytest.raises(ValueError, match="cannot continue actions"):
        actor.infer(seen, prefix=np.zeros((sizes.ROWS, 1, sizes.ACTION_DIM), np.float32))
    with pytest.raises(ValueError, match="no likelihood and no flow, which `train` needs"):
        actor.act(seen, NoiseKeys.none(sizes.ROWS), explore=False)


@pytest.mark.parametrize("attached", ["diffusion"], indirect=True)
def test_a_first_observation_counts_for_those_before_it_and_later_ones_matter(attached: Attached) -> None:
    """As lerobot fills its queue when an episode begins."""
    actor, keys = ImitationActor(*attached).eval(), NoiseKeys.none(sizes.ROWS)
    now, before = small.observe(1), small.observe(0)
    first = actor.infer(now, keys)
    assert np.array_equal(actor.infer(now, keys, earlier=[now]), first)
    assert not np.allclose(actor.infer(now, keys, earlier=[before]), first, atol=1e-3)


@pytest.mark.parametrize("attached", KINDS, indirect=True)
def test_a_loaded_policy_takes_any_words_and_needs_no_history(attached: Attached, tmp_path: Path) -> None:
    """As servers and the bridge load it: they have the current observation alone."""
    kind = KINDS[attached[0].observations - 1]
    file, seen = save(tmp_path / "policy.safetensors", kind, *attached), small.observe(0)
    if kind == "diffusion":
        with pytest.raises(ValueError, match="reads the observations of 2 control steps"):
            load_policy(file)
        return
    asked = {"images": {name: image[0] for name, image in seen.images.items()}, "state": seen.state[0]}
    found = load_policy(file).act(asked | {"prompt": "words that no vocabulary has, and many of them, are not read"})
    np.testing.assert_allclose(found, ImitationActor(*attached).infer(seen)[0], atol=1e-5)


@pytest.mark.parametrize("variant", ["act", "diffusion", "diffusion_single"])
def test_cloning_lowers_the_loss(variant: str, tmp_path: Path) -> None:
    """Of the demonstration that it clones; the statistics of batch normalisation stay."""
    attached = small.attach(small.folder(tmp_path, variant), sizes.VARIANTS[variant][0])
    network = attached[0]
    for parameter in (value for name, value in network.named_parameters() if "backbone" in name):
        parameter.requires_grad_(False)  # of the trunk, for a quick test
    fixed = {name: value.clone() for name, value in network.named_buffers()}
    config = SFT.Config(steps=0, frames=0, finetune_steps=8, finetune_lr=0.02)
    demonstrated, padding = map(torch.from_numpy, sizes.chunk(network.config.horizon + network.observations - 1))
    batch = CloningBatch(small.inputs(attached), demonstrated, padding)
    before = float(small.loss(attached).detach())
    SFT(config, network, 0, lambda *_: None).finetune(iter([batch] * 8))
    assert float(small.loss(attached).detach()) < 0.9 * before
    assert all(torch.equal(value, fixed[name]) for name, value in network.named_buffers())


def test_ddim_finds_the_actions_that_every_step_predicts() -> None:
    """A network that knows the noise exactly leads to the actions, whatever it starts from, by the closed form."""
    schedule = NoiseSchedule("DDIM", "epsilon", 20, 5, torch.inf, "squaredcos_cap_v2", 1e-4, 0.02)
    actions, noise = torch.randn(2, 4, 3), torch.randn(2, 1, 4, 3)
    shares = schedule.kept_shares()

    def know(x: torch.Tensor, step: int) -> torch.Tensor:
        return (x - shares[step].sqrt() * actions) / (1 - shares[step]).sqrt()

    torch.testing.assert_close(schedule.denoise(know, noise), actions, atol=1e-4, rtol=0)


def test_ddpm_steps_have_the_posterior_of_the_forward_process() -> None:
    """Mean and variance of x_{t-1} given x_t and the actions, by the product of two normal densities."""
    schedule = NoiseSchedule("DDPM", "sample", 10, 10, torch.inf, "linear", 0.05, 0.3)
    shares, actions = schedule.kept_shares().double(), 0.7
    noise = torch.randn(1, 10, 1, 1)
    x, seen = float(noise[0, 0]), []

    def predict(given: torch.Tensor, step: int) -> torch.Tensor:
        seen.append(float(given))
        return torch.full_like(given, actions)

    found = schedule.denoise(predict, noise)
    for index, step in enumerate(range(9, 0, -1)):
        kept, prior = shares[step] / shares[step - 1], 1 - shares[step - 1]
        precision = 1 / prior + kept / (1 - kept)
        mean = (shares[step - 1].sqrt() * actions / prior + kept.sqrt() * seen[index] / (1 - kept)) / precision
        assert seen[index + 1] == pytest.approx(float(mean + precision**-0.5 * noise[0, index + 1]), abs=1e-5)
    assert seen[0] == x and float(found) == pytest.approx(actions, abs=1e-5)


def test_cloning_without_its_settings_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft", "policy=diffusion", "sim=tabletop", "--dry-run"]) == 2
    assert "type algo=sft_vla" in capsys.readouterr().err
