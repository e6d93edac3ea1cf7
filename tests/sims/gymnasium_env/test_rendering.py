"""Drawing leaves a MuJoCo simulation as it was, in every version of its Python package."""

from types import SimpleNamespace

import mujoco
import numpy as np
import pytest

from embodied_rl_sims.gymnasium_env.environment import restore_after_drawing

XML = """<mujoco><worldbody><geom type="plane" size="1 1 .1"/><site name="goal"/>
<body pos="0 0 .09"><freejoint/><geom size=".1"/></body></worldbody></mujoco>"""
FIELDS = ("qpos", "qvel", "xpos", "qacc_warmstart", "efc_force", "time")


@pytest.mark.parametrize("bound", [True, False], ids=["MuJoCo 3.4 and later", "MuJoCo before 3.4"])
def test_every_quantity_is_restored(bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 3.4 the package has no `mj_copyData`."""
    if not bound:
        monkeypatch.delattr(mujoco, "mj_copyData", raising=False)
    elif not hasattr(mujoco, "mj_copyData"):
        pytest.skip("this MuJoCo is older")
    model = mujoco.MjModel.from_xml_string(XML)
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 3)
    before = {name: np.copy(getattr(data, name)) for name in FIELDS}
    assert before["efc_force"].size
    with restore_after_drawing(SimpleNamespace(model=model, data=data)):
        data.qpos[2] += 1.0
        model.site_pos[:] = 5.0
        mujoco.mj_step(model, data, 2)
    for name in FIELDS:
        assert np.array_equal(getattr(data, name), before[name]), name
    assert (model.site_pos == 0).all()
