"""ManiSkill in its own Python environment. The checks are those of `inside.py`, which one process runs."""

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode, Unavailable
from embodied_rl.testing.simulator_contract import check_observation, check_result
from tests.support.environments import kind_of, python_of

pytestmark = pytest.mark.sim

INSIDE = Path(__file__).with_name("inside.py")
ROOT = Path(__file__).parents[3]
CHECKS = re.findall(r"@check\ndef (\w+)", INSIDE.read_text() + INSIDE.with_name("inside_plates.py").read_text())


@pytest.fixture(scope="module")
def verdicts() -> dict[str, str]:
    python, paths = python_of("maniskill"), [str(ROOT), str(ROOT / "sims")]
    run = subprocess.run(
        [python, INSIDE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    found = json.loads(run.stdout.splitlines()[-1])
    if "unavailable" in found:
        pytest.skip(found["unavailable"])
    return found


@pytest.mark.parametrize("name", CHECKS)
def test_inside(verdicts, name):
    assert not verdicts[name], verdicts[name]


def test_it_runs_behind_the_proxy():
    kind = kind_of("maniskill", task="PushCube-v1", observations="state", horizon=4)
    try:
        simulator = kind.build(2)
    except Unavailable as error:
        pytest.skip(str(error))
    spec = simulator.spec
    check_observation(spec, simulator.reset([Episode(0, 0, 1), Episode(1, 0, 2)]), 2)
    operator = simulator.expert()
    result = simulator.step(np.stack([operator()] * 3, axis=1), [None, None])
    check_result(spec, result, 2, 3)
    simulator.close()
