"""Videos by OpenGL: they show the scene of the ray camera, or say how to do without."""

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl.testing.simulator_contract import assert_same
from embodied_rl_sims.tabletop import video


def test_opengl_shows_what_rays_show(make) -> None:
    """Coloured objects stand in the same places; on a machine without EGL, the message names the other renderer."""
    episode = Episode(0, 0, 5)
    drawn, cast, unseen = make(renderer="egl"), make(), make()
    for simulator in (drawn, cast, unseen):
        simulator.reset([episode])
    try:
        picture = drawn.render(0, 96, 96)
    except RuntimeError as error:
        assert "sim.renderer=raycast" in str(error)
        return
    colourful = [np.ptp(image.astype(int), axis=-1) > 90 for image in (picture, cast.render(0, 96, 96))]
    assert (colourful[0] & colourful[1]).sum() > 0.8 * (colourful[0] | colourful[1]).sum() > 0
    corner = picture[-5:, :5].reshape(-1, 3).mean(axis=0)
    assert corner.min() > 60 and corner[0] > corner[2]  # the table, in its warm colour, and no empty space
    action = np.full((1, 5, 4), 0.01, np.float32)
    assert_same(drawn.step(action, [None]), unseen.step(action, [None]), "an episode filmed with OpenGL")


def test_without_egl_the_remedy_is_named(make, monkeypatch) -> None:
    simulator = make(renderer="egl")
    simulator.reset([Episode(0, 0, 5)])

    def broken(*_: object) -> None:
        raise OSError("libEGL.so.1: cannot open shared object file")

    monkeypatch.setattr(video, "make_egl_context", broken)
    with pytest.raises(RuntimeError, match=r"libEGL.so.1.*libegl1.*sim\.renderer=raycast"):
        simulator.render(0, 32, 32)
