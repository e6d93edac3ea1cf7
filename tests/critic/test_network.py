"""The network refuses what it does not know, by name, and judges each row alone."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.critic.network import ProgressCritic
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl_sims.tabletop.settings import TabletopConfig, spec_of
from tests.support.critics import gather_some, make_critic
from tests.support.refusals import refuses

SPEC = spec_of(TabletopConfig())


def ask(
    critic: ProgressCritic, words: str = "pick up the red cube", camera: str = "front", size: int = 64, state: int = 7
):
    images = {camera: np.zeros((2, size, size, 3), np.uint8)}
    return critic(images, images, [words] * 2, np.zeros((2, state), np.float32))


def test_it_knows_its_cameras_and_words() -> None:
    critic = make_critic()
    assert critic.cameras == ("front",) and {"red", "button"} <= set(critic.vocabulary)
    found = ask(critic)
    assert found.progress.shape == found.done.shape == (2,) and found.bins.shape == (2, 21)
    np.testing.assert_allclose(found.progress, found.bins @ np.linspace(0, 1, 21), atol=1e-6)


@pytest.mark.parametrize(
    ("asked", "code", "named"),
    [
        ({"words": "lift the red cube"}, "word-unknown", "'lift' of 'lift the red cube'"),
        ({"words": "pick up the red cube " * 3}, "prompt-too-long", "words"),
        ({"camera": "wrist"}, "camera-missing", "'front'; shown is wrist"),
        ({"size": 32}, "camera-size-mismatch", "64"),
        ({"state": 6}, "state-invalid", "7 state entries"),
    ],
)
def test_unknown_input_is_refused_by_name(asked: dict, code: str, named: str) -> None:
    with refuses(code, named):
        ask(make_critic(), **asked)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cameras": (replace(SPEC.cameras[0], name="wrist"),)}, "camera 'front'"),
        ({"cameras": (replace(SPEC.cameras[0], width=32),)}, "64"),
        ({"state_names": (*SPEC.state_names[:-1], "elbow")}, "elbow"),
        ({"words": (*SPEC.words, "sphere")}, "sphere"),
    ],
)
def test_another_simulator_is_refused(change: dict, named: str) -> None:
    make_critic().check_fit(SPEC)
    with refuses("critic-does-not-fit", named):
        make_critic().check_fit(replace(SPEC, **change))


def test_a_backbone_that_describes_nothing_is_refused() -> None:
    with refuses("policy-without-perception", "'blind'"):
        ProgressCritic(FlowBackbone(), make_critic().embodiment, "blind")


def test_rows_do_not_depend_on_each_other() -> None:
    critic, episode = make_critic(), gather_some()[0]
    frames = len(episode.state)
    first = {name: np.repeat(images[:1], frames, 0) for name, images in episode.frames.items()}
    words = [episode.goals[n % len(episode.goals)].instruction for n in range(frames)]
    together = critic(episode.frames, first, words, episode.state)
    for n in range(frames):
        one = {name: images[n : n + 1] for name, images in episode.frames.items()}
        alone = critic(one, {k: v[:1] for k, v in first.items()}, words[n : n + 1], episode.state[n : n + 1])
        np.testing.assert_allclose(alone.bins[0], together.bins[n], atol=1e-6)
        np.testing.assert_allclose(alone.done[0], together.done[n], atol=1e-6)


def test_a_first_frame_is_located_once_for_all_states() -> None:
    critic, episode = make_critic(), gather_some()[0]
    frames = len(episode.state)
    first = {name: np.repeat(images[:1], frames, 0) for name, images in episode.frames.items()}
    words = [episode.goals[0].instruction] * frames
    wanted = critic(episode.frames, first, words, episode.state)
    start = critic.localise(first, words, np.random.default_rng(0).normal(size=episode.state.shape).astype(np.float32))
    found = critic.compare(episode.frames, start, words, episode.state)
    assert np.array_equal(found.bins, wanted.bins) and np.array_equal(found.done, wanted.done)
    assert not np.array_equal(critic.compare(episode.frames, start + 1, words, episode.state).bins, wanted.bins)


def test_parts_of_the_backbone_that_it_does_not_use_do_not_matter() -> None:
    critic = make_critic()
    before, identity = ask(critic), critic.identity
    used = {id(value) for value in critic.named_weights().values()}
    spare = [value for value in critic.parameters() if id(value) not in used]
    assert spare
    for value in spare:
        value.data.fill_(float("nan"))
    assert np.array_equal(before.bins, ask(critic).bins) and critic.identity == identity
