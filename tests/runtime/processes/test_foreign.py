"""Workers in another Python environment, where nothing of ours is installed."""

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
from embodied_rl.runtime.processes.handle import GaveUp, Handle, WorkerDied, WorkerError
from embodied_rl.runtime.processes.interpreter import Interpreter, find_folder_of
from embodied_rl.runtime.processes.local import InlineHandle, ProcessHandle
from embodied_rl.runtime.processes.remote import RemoteSimulator
from embodied_rl.testing.comparison import assert_same
from embodied_rl.testing.contract import check_simulator
from embodied_rl.testing.fake_simulator import FakeSimulator
from tests.support.guests import Nosy, OnDevice, environment

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


@pytest.mark.process
def test_a_simulator_in_another_environment_keeps_the_contract(foreign: Interpreter) -> None:
    def build(num_envs: int) -> RemoteSimulator:
        kwargs = {"num_envs": num_envs, "config": FakeSimulator.Config(horizon=7)}
        handle = ProcessHandle(FAKE, kwargs, interpreter=foreign, packages=("embodied_rl",))
        return RemoteSimulator(handle, num_envs, FakeSimulator)

    check_simulator(build)


@pytest.mark.process
def test_nothing_but_numpy_and_what_is_shared_can_be_imported_there(start: Start, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", find_folder_of("torch"))  # meant for this Python, not for that one
    handle = start("tests.support.guests:Nosy")
    can = {
        name: handle.submit("imports", name).result() for name in ("numpy", "embodied_rl", "tests", "torch", "mujoco")
    }
    assert can == {"numpy": True, "embodied_rl": True, "tests": True, "torch": False, "mujoco": False}
    runtime = str(Path(bootstrap.__file__).parent)
    assert runtime not in [os.path.realpath(entry) for entry in handle.submit("path").result()]


@pytest.mark.process
def test_folders_of_pythonpath_can_be_imported_from(tmp_path: Path, foreign: Interpreter, start: Start) -> None:
    (tmp_path / "cloned_by_hand.py").write_text("")
    there = Interpreter(foreign.python, (str(tmp_path),))
    assert start("tests.support.guests:Nosy", there).submit("imports", "cloned_by_hand").result()
    assert not start("tests.support.guests:Nosy").submit("imports", "cloned_by_hand").result()


@pytest.mark.process
def test_an_operator_stays_in_its_worker(start: Start) -> None:
    remote = RemoteSimulator(start("tests.support.guests:Nosy"), 2, Nosy)
    remote.reset([Episode(0, 0, 1), Episode(1, 1, 2)])
    careful, faulty = remote.expert(), remote.expert(faulty=True)
    for _ in range(2):  # 0: go left, 1: go right
        np.testing.assert_array_equal(careful(), [[-1, -1], [1, 1]])
        np.testing.assert_array_equal(faulty(), np.zeros((2, 2)))
    assert not hasattr(RemoteSimulator(start(FAKE), 2, FakeSimulator), "expert")
    assert inspect.getattr_static(remote, "expert"), "this is how Python 3.12 looks for a protocol's members"


@pytest.mark.process
def test_a_worker_draws_pictures_where_its_simulator_does(start: Start) -> None:
    remote = RemoteSimulator(start("tests.support.guests:Nosy"), 2, Nosy)
    assert isinstance(remote, Rendered) and remote.render(1, 5, 3).shape == (3, 5, 3)
    assert not isinstance(RemoteSimulator(start(FAKE), 2, FakeSimulator), Rendered)


@pytest.mark.process
def test_a_simulator_that_does_not_tell_its_pictures_from_its_physics_has_spent_nothing_on_them(start: Start) -> None:
    assert RemoteSimulator(start(FAKE), 2, FakeSimulator).render_seconds == 0.0


@pytest.mark.process
def test_observations_on_an_accelerator_reach_the_host(start: Start) -> None:
    remote, plain = RemoteSimulator(start("tests.support.guests:OnDevice"), 2, FakeSimulator), FakeSimulator(2)
    episodes = [Episode(0, 0, 1), Episode(1, 1, 2)]
    assert remote.spec.device == "cpu"
    assert_same(remote.reset(episodes), plain.reset(episodes), "they differ from a plain simulator's")
    actions = np.ones((2, 9, 2), np.float32)
    assert_same(remote.step(actions, episodes), plain.step(actions, episodes), "a chunk differs")


def test_observations_on_an_accelerator_reach_the_host_in_this_process_too() -> None:
    inline, plain = InlineHandle(lambda: OnDevice(2)), FakeSimulator(2)
    episodes, actions = [Episode(0, 0, 1), Episode(1, 1, 2)], np.ones((2, 9, 2), np.float32)
    assert_same(
        inline.submit("reset", episodes).result(), plain.reset(episodes), "they differ from a plain simulator's"
    )
    ours, theirs = inline.submit("step", actions, episodes).result(), plain.step(actions, episodes)
    assert ours.final_observation is not None
    assert_same(ours, theirs, "a chunk differs")


@pytest.mark.process
def test_pictures_stay_as_they_were_however_often_it_steps(start: Start) -> None:
    remote = RemoteSimulator(start(FAKE), 2, FakeSimulator)
    first = remote.reset([Episode(0, 0, 1), Episode(1, 1, 2)])
    before = first.images["top"].copy()
    for _ in range(3):
        remote.step(np.ones((2, 2, 2), np.float32), [None, None])
    np.testing.assert_array_equal(first.images["top"], before)


@pytest.mark.process
def test_an_environment_without_numpy_says_so(tmp_path: Path, start: Start) -> None:
    bare = Interpreter.find(str(environment(tmp_path / "bare", packages=())))
    handle = start(FAKE, bare)
    with pytest.raises(
        GaveUp, match=r"simulator 7 cannot run in .*bare/bin/python: NumPy cannot be imported.*-m pip install numpy"
    ):
        handle.submit("reset", [None, None]).result()
    with pytest.raises(GaveUp, match="NumPy"):
        handle.restart()


def test_an_old_python_says_so() -> None:
    script = runpy.run_path(str(Path(bootstrap.__file__)))
    assert script["list_missing_packages"]() == ""
    script["list_missing_packages"].__globals__["OLDEST"] = (9, 9)
    assert "a simulator's Python must be 9.9 or newer" in script["list_missing_packages"]()


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
def test_arrays_cross_between_versions_of_numpy(array: np.ndarray) -> None:
    """Messages name none of NumPy's private modules, which moved from 1 to 2."""
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
@pytest.mark.parametrize("spoken, said", [(1, "speaks version 1"), (None, "does not say which version")])
def test_another_protocol_is_refused_before_anything_is_unpickled(spoken, said: str, start: Start, monkeypatch) -> None:
    monkeypatch.setattr(local, "receive_greeting", lambda pipe: pipe.recv_bytes() and {"protocol": spoken})
    monkeypatch.setattr("pickle.loads", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(GaveUp, match=f"{said}.*this process version {local.PROTOCOL}.*Use one for both"):
        _ = start(FAKE).spec


@pytest.mark.process
def test_something_else_that_talks_is_refused(tmp_path: Path, start: Start) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/bash\nshift 2\nprintf "\\000\\000\\000\\003abc" >&$1\nsleep 5\n')
    program.chmod(0o755)
    with pytest.raises(GaveUp, match="does not say which version"):
        _ = start(FAKE, Interpreter.find(str(program))).spec


@pytest.mark.process
def test_a_missing_package_is_named_with_its_remedy(foreign: Interpreter, start: Start) -> None:
    expected = (
        rf"simulator 7: the package 'no_such_simulator' is not installed in {foreign.python}\. Type this to get it\."
    )
    with pytest.raises(Unavailable, match=expected):
        _ = start("tests.support.guests:NeedsPackage").spec


@pytest.mark.process
def test_what_is_missing_is_told_without_a_traceback(start: Start) -> None:
    with pytest.raises(Unavailable) as error:
        _ = start("tests.support.guests:NeedsAsset").spec
    assert str(error.value) == "simulator 7: the bowl is missing; get it with: wash dishes"


@pytest.mark.process
def test_what_our_own_code_refuses_is_for_the_user_and_what_stumbles_is_not(start: Start) -> None:
    with pytest.raises(ValueError, match="the package 'no_such_package' cannot be found here"):
        _ = start("tests.support.guests:Refuses", stumble=False).spec
    with pytest.raises(WorkerError, match=r"ValueError: invalid literal(.|\n)*traceback"):
        _ = start("tests.support.guests:Refuses", stumble=True).spec


@pytest.mark.process
def test_a_question_is_an_error_not_a_wait(start: Start) -> None:
    with pytest.raises(WorkerError, match="EOFError"):
        _ = start("tests.support.guests:Asks").spec


@pytest.mark.process
@pytest.mark.parametrize(
    "fault, error, match",
    [("raise", WorkerError, "told to fail"), ("crash", WorkerDied, "SIGKILL"), ("physics", NotFinite, "nothing")],
)
def test_faults_cross_the_border(fault: str, error: type[Exception], match: str, start: Start) -> None:
    handle = start(FAKE, config=FakeSimulator.Config(fault=fault))
    handle.submit("reset", [Episode(0, 0, 1), Episode(1, 1, 2)]).result()
    with pytest.raises(error, match=match):
        handle.submit("step", np.zeros((2, 1, 2), np.float32), [None, None]).result()


@pytest.mark.process
def test_a_program_that_cannot_run_says_so(tmp_path: Path, start: Start) -> None:
    program = tmp_path / "python"
    program.write_text("no program")
    program.chmod(0o755)
    with pytest.raises(WorkerDied, match=r"simulator 7 could not be started by .*python: .*Exec format error"):
        start(FAKE, Interpreter.find(str(program)))


@pytest.mark.parametrize("given, said", [("no/python", "is not there"), ("text", "cannot be executed")])
def test_what_is_no_interpreter_is_refused(given: str, said: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("")
    with pytest.raises(ValueError, match=f"sim.python: {given} {said}"):
        Interpreter.find(given)


def test_the_folder_of_an_environment_means_its_interpreter(foreign: Interpreter) -> None:
    assert Interpreter.find(str(Path(foreign.python).parents[1])).python == foreign.python
