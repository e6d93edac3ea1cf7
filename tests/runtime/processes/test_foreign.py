"""Workers in another Python environment, in which our packages are not installed."""

import inspect
import os
import re
import runpy
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode, NotFinite, Rendered, Unavailable
from embodied_rl.runtime.processes import bootstrap, local, messages
from embodied_rl.runtime.processes.handle import Handle, RestartLimitReached, WorkerDied, WorkerError
from embodied_rl.runtime.processes.interpreter import Interpreter, find_folder_of
from embodied_rl.runtime.processes.local import InlineHandle, ProcessHandle
from embodied_rl.runtime.processes.remote import RemoteSimulator
from embodied_rl.testing.contract import check_simulator
from embodied_rl.testing.fake_simulator import FakeSimulator
from embodied_rl.testing.simulator_contract import assert_same
from tests.support.guests import Nosy, OnDevice, environment
from tests.support.refusals import refuses

FAKE = "embodied_rl.testing.fake_simulator:FakeSimulator"


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    python = environment(tmp_path_factory.mktemp("environment") / "numpy_alone")
    return Interpreter.find(str(python), remedy="Type this to get it.")


Start = Callable[..., ProcessHandle]


@pytest.fixture
def start(foreign: Interpreter, closing: Callable[[list[Handle]], list[Handle]]) -> Start:
    def start(factory: str, interpreter: Interpreter = foreign, **kwargs: object) -> ProcessHandle:
        packages = (factory.partition(":")[0].partition(".")[0],)
        given = {"num_envs": 2, **kwargs}
        handle = ProcessHandle(factory, given, name="simulator 7", interpreter=interpreter, packages=packages)
        closing([handle])
        return handle

    return start


@pytest.mark.thorough
@pytest.mark.process
def test_a_simulator_in_another_environment_keeps_the_contract(foreign: Interpreter) -> None:
    def build(num_envs: int) -> RemoteSimulator:
        kwargs = {"num_envs": num_envs, "config": FakeSimulator.Config(horizon=7)}
        handle = ProcessHandle(FAKE, kwargs, interpreter=foreign, packages=("embodied_rl",))
        return RemoteSimulator(handle, num_envs, FakeSimulator)

    check_simulator(build)


@pytest.mark.process
def test_worker_can_import_only_numpy_and_shared_packages(start: Start, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", find_folder_of("torch"))  # meant for this Python, not for that one
    handle = start("tests.support.guests:Nosy")
    can = {
        name: handle.submit("imports", name).result() for name in ("numpy", "embodied_rl", "tests", "torch", "mujoco")
    }
    assert can == {"numpy": True, "embodied_rl": True, "tests": True, "torch": False, "mujoco": False}
    runtime = str(Path(bootstrap.__file__).parent)
    assert runtime not in [os.path.realpath(entry) for entry in handle.submit("path").result()]


@pytest.mark.process
def test_pythonpath_folders_are_importable(tmp_path: Path, foreign: Interpreter, start: Start) -> None:
    (tmp_path / "cloned_by_hand.py").write_text("")
    there = Interpreter(foreign.python, (str(tmp_path),))
    assert start("tests.support.guests:Nosy", there).submit("imports", "cloned_by_hand").result()
    assert not start("tests.support.guests:Nosy").submit("imports", "cloned_by_hand").result()


@pytest.mark.thorough
@pytest.mark.process
def test_functions_returned_by_a_call_stay_in_the_worker(start: Start) -> None:
    remote = RemoteSimulator(start("tests.support.guests:Nosy"), 2, Nosy)
    remote.reset([Episode(0, 0, 1), Episode(1, 1, 2)])
    careful, faulty = remote.expert(), remote.expert(faulty=True)
    for _ in range(2):  # 0: go left, 1: go right
        np.testing.assert_array_equal(careful(), [[-1, -1], [1, 1]])
        np.testing.assert_array_equal(faulty(), np.zeros((2, 2)))
    assert not hasattr(RemoteSimulator(start(FAKE), 2, FakeSimulator), "expert")
    assert inspect.getattr_static(remote, "expert"), "this is how Python 3.12 looks for a protocol's members"


@pytest.mark.process
def test_render_is_available_only_if_the_simulator_has_it(start: Start) -> None:
    remote = RemoteSimulator(start("tests.support.guests:Nosy"), 2, Nosy)
    assert isinstance(remote, Rendered) and remote.render(1, 5, 3).shape == (3, 5, 3)
    other = RemoteSimulator(start(FAKE), 2, FakeSimulator)
    assert not isinstance(other, Rendered) and other.render_seconds == 0.0


@pytest.mark.thorough
@pytest.mark.process
def test_observations_on_an_accelerator_are_copied_to_the_host(start: Start) -> None:
    remote, plain = RemoteSimulator(start("tests.support.guests:OnDevice"), 2, FakeSimulator), FakeSimulator(2)
    episodes = [Episode(0, 0, 1), Episode(1, 1, 2)]
    assert remote.spec.device == "cpu"
    assert_same(remote.reset(episodes), plain.reset(episodes), "they differ from a plain simulator's")
    actions = np.ones((2, 9, 2), np.float32)
    assert_same(remote.step(actions, episodes), plain.step(actions, episodes), "a chunk differs")


def test_inline_observations_on_an_accelerator_are_copied_to_the_host() -> None:
    inline, plain = InlineHandle(lambda: OnDevice(2)), FakeSimulator(2)
    episodes, actions = [Episode(0, 0, 1), Episode(1, 1, 2)], np.ones((2, 9, 2), np.float32)
    assert_same(
        inline.submit("reset", episodes).result(), plain.reset(episodes), "they differ from a plain simulator's"
    )
    ours, theirs = inline.submit("step", actions, episodes).result(), plain.step(actions, episodes)
    assert ours.final_observation is not None
    assert_same(ours, theirs, "a chunk differs")


@pytest.mark.thorough
@pytest.mark.process
def test_images_do_not_change_with_later_steps(start: Start) -> None:
    remote = RemoteSimulator(start(FAKE), 2, FakeSimulator)
    first = remote.reset([Episode(0, 0, 1), Episode(1, 1, 2)])
    before = first.images["top"].copy()
    for _ in range(3):
        remote.step(np.ones((2, 2, 2), np.float32), [None, None])
    np.testing.assert_array_equal(first.images["top"], before)


@pytest.mark.thorough
@pytest.mark.process
def test_an_environment_without_numpy_is_reported(tmp_path: Path, start: Start) -> None:
    bare = Interpreter.find(str(environment(tmp_path / "bare", packages=())))
    handle = start(FAKE, bare)
    with pytest.raises(
        RestartLimitReached,
        match=r"simulator 7 cannot run in .*bare/bin/python: NumPy cannot be imported.*-m pip install numpy",
    ):
        handle.submit("reset", [None, None]).result()
    with pytest.raises(RestartLimitReached, match="NumPy"):
        handle.restart()


def test_an_old_python_is_reported() -> None:
    script = runpy.run_path(str(Path(bootstrap.__file__)))
    assert script["list_missing_packages"]() == ""
    script["list_missing_packages"].__globals__["OLDEST"] = (9, 9)
    assert "9.9" in script["list_missing_packages"]()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.broadcast_to(np.float64(2.5), (3, 2)),
        np.frombuffer(b"read only", np.uint8),
        np.array([], np.int64),
        np.array(True),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.array(["red", "blue"]),
        np.array([None, "x"], object),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_pickled_arrays_are_readable_by_numpy_1_and_2(array: np.ndarray) -> None:
    """Messages do not name private modules of NumPy, which moved from 1 to 2."""
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as one, Connection(theirs.detach()) as other:
        messages.send(one, {"array": array})
        message = other.recv_bytes()
        assert array.dtype.hasobject or not re.search(rb"numpy\._?core", message)
        messages.send(one, {"array": array})
        found = messages.receive(other)["array"]
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


@pytest.mark.process
@pytest.mark.parametrize("protocol", [1, None])
def test_another_protocol_is_refused_before_unpickling(protocol: int | None, start: Start, monkeypatch) -> None:
    monkeypatch.setattr(local, "receive_greeting", lambda pipe: pipe.recv_bytes() and {"protocol": protocol})
    monkeypatch.setattr("pickle.loads", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(RestartLimitReached, match=f"version is {protocol},.*{local.PROTOCOL}"):
        _ = start(FAKE).spec


@pytest.mark.process
def test_a_program_that_sends_other_bytes_is_refused(tmp_path: Path, start: Start) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/bash\nshift 2\nprintf "\\000\\000\\000\\003abc" >&$1\nsleep 5\n')
    program.chmod(0o755)
    with pytest.raises(RestartLimitReached, match="version is None"):
        _ = start(FAKE, Interpreter.find(str(program))).spec


@pytest.mark.process
def test_a_missing_package_is_named_with_its_remedy(foreign: Interpreter, start: Start) -> None:
    with pytest.raises(Unavailable, match=rf"simulator 7.*no_such_simulator.*{foreign.python}.*Type this to get it\."):
        _ = start("tests.support.guests:NeedsPackage").spec


@pytest.mark.thorough
@pytest.mark.process
def test_unavailable_resources_are_reported_without_traceback(start: Start) -> None:
    with pytest.raises(Unavailable) as error:
        _ = start("tests.support.guests:NeedsAsset").spec
    assert str(error.value) == "simulator 7: the bowl is missing; get it with: wash dishes"


@pytest.mark.thorough
@pytest.mark.process
def test_user_errors_keep_their_code_and_other_errors_have_a_traceback(start: Start) -> None:
    with refuses("package-missing", "no_such_package"):
        _ = start("tests.support.guests:Refuses", stumble=False).spec
    with pytest.raises(WorkerError, match=r"ValueError: invalid literal(.|\n)*traceback"):
        _ = start("tests.support.guests:Refuses", stumble=True).spec


@pytest.mark.process
@pytest.mark.parametrize(
    "fault, error, match",
    [("raise", WorkerError, "told to fail"), ("crash", WorkerDied, "SIGKILL"), ("physics", NotFinite, "nothing")],
)
def test_faults_in_the_worker_are_raised_here(fault: str, error: type[Exception], match: str, start: Start) -> None:
    handle = start(FAKE, config=FakeSimulator.Config(fault=fault))
    handle.submit("reset", [Episode(0, 0, 1), Episode(1, 1, 2)]).result()
    with pytest.raises(error, match=match):
        handle.submit("step", np.zeros((2, 1, 2), np.float32), [None, None]).result()


@pytest.mark.process
def test_a_file_that_is_not_a_program_is_reported(tmp_path: Path, start: Start) -> None:
    program = tmp_path / "python"
    program.write_text("no program")
    program.chmod(0o755)
    with pytest.raises(WorkerDied, match=r"simulator 7 could not be started by .*python: .*Exec format error"):
        start(FAKE, Interpreter.find(str(program)))


@pytest.mark.parametrize("given", ["no/python", "text"])
def test_invalid_interpreters_are_refused(given: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("")
    with refuses("interpreter-invalid", "sim.python", given):
        Interpreter.find(given)


def test_an_environment_folder_is_accepted_as_interpreter(foreign: Interpreter) -> None:
    assert Interpreter.find(str(Path(foreign.python).parents[1])).python == foreign.python
