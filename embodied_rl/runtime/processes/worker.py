"""Main program of a worker process, the counterpart of a process handle.

It imports only NumPy and the standard library, so that it starts in any Python environment that a simulator needs.
After a greeting (see `messages.py`), requests are pickled tuples (method, args); replies are `Reply` or `CallFailure`.
Images are not sent through the pipe: they are written to shared memory, alternating between two slots, so that the
last observation stays readable while the next one is written.
"""

import faulthandler
import importlib
import math
import mmap
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.interfaces.sim import Array, Camera, NotFinite, Observation, SimulatorSpec, StepResult, Unavailable
from embodied_rl.runtime.processes.messages import ShortenedLists, receive, send, send_greeting
from embodied_rl.runtime.processes.simulator_checks import check_output
from embodied_rl.system.terminal import receive_terminal

SLOTS = 2


@dataclass
class Reply:
    """The result of a call, which took `seconds` from `began`. Its images are in shared-memory slot `slot`."""

    value: Any
    began: float
    seconds: float
    slot: int


@dataclass
class CallFailure:
    """The description of an exception that a call raised.

    Attributes:
        row: the environment in which the physics gave a non-finite number.
        unavailable: whether something is missing on this machine; `summary` is then the complete message.
        missing: the package that could not be imported.
        refused: whether our own code, or a plug-in's, rejected its input; `summary` is then a message for the user.
        code: of the `UserError` that rejected the input.
        worker_failed: whether `summary` is the complete message about a failed worker of this worker.
        not_finite: whether a role raised `FloatingPointError`; `summary` then names the place.
    """

    summary: str
    traceback: str
    row: int | None = None
    unavailable: bool = False
    missing: str = ""
    refused: bool = False
    code: str = ""
    worker_failed: bool = False
    not_finite: bool = False


class ImageSlots:
    """Two slots of shared memory; each holds, per camera, n images of an observation and n of a final observation.

    Args:
        memory: descriptor of the shared memory; its size is set here. Unused pages cost nothing.
        cameras: as in `SimulatorSpec`.
        num_envs: n.
    """

    def __init__(self, memory: int, cameras: tuple[Camera, ...], num_envs: int):
        self.cameras, self.num_envs = cameras, num_envs
        shapes = [(SLOTS, 2, num_envs, camera.height, camera.width, 3) for camera in cameras]
        size = max(1, sum(math.prod(shape) for shape in shapes))
        if os.fstat(memory).st_size != size:
            os.ftruncate(memory, size)
        self._memory = mmap.mmap(memory, size)
        self._images: dict[str, Array] = {}
        offset = 0
        for camera, shape in zip(cameras, shapes, strict=True):
            flat = np.frombuffer(self._memory, np.uint8, math.prod(shape), offset)
            self._images[camera.name] = flat.reshape(shape)
            offset += math.prod(shape)

    def put(self, value: Any, slot: int) -> Any:
        """Return `value` with the images of its observations moved to a slot. Return other values unchanged."""
        return self._convert(value, slot, self._store)

    def take(self, value: Any, slot: int) -> Any:
        """Return a value of `put` with its images restored, as views of the slot."""
        return self._convert(value, slot, self._view)

    def _convert(self, value: Any, slot: int, move: Any) -> Any:
        if isinstance(value, Observation):
            return move(value, slot, 0)
        if isinstance(value, StepResult):
            final = value.final_observation
            final = None if final is None else move(final, slot, 1)
            return replace(value, observation=move(value.observation, slot, 0), final_observation=final)
        return value

    def _store(self, observation: Observation, slot: int, part: int) -> Observation:
        for name, image in observation.images.items():
            self._images[name][slot, part, : len(observation)] = image
        return replace(observation, images={})

    def _view(self, observation: Observation, slot: int, part: int) -> Observation:
        rows = len(observation)
        return replace(observation, images={name: array[slot, part, :rows] for name, array in self._images.items()})


def as_host_array(array: Any) -> Array:
    """Return a NumPy array of a tensor, which may be on an accelerator. Return anything else unchanged."""
    return np.asarray(array.cpu()) if hasattr(array, "cpu") else array


def move_to_host(value: Any) -> Any:
    """Return `value` with the arrays of its observations on the host. Return other values unchanged."""
    if isinstance(value, StepResult):
        final = value.final_observation
        value.observation = move_to_host(value.observation)
        value.final_observation = None if final is None else move_to_host(final)
        return value
    if not isinstance(value, Observation):
        return value
    images = value.images
    if isinstance(images, dict):
        images = {name: as_host_array(image) for name, image in images.items()}
    truth = None if value.privileged is None else as_host_array(value.privileged)
    progress = None if value.progress is None else as_host_array(value.progress)
    return replace(value, images=images, state=as_host_array(value.state), privileged=truth, progress=progress)


def build_role(factory: str, kwargs: Mapping[str, Any]) -> Any:
    """Build a role from its "module:Class" and its keyword arguments."""
    return resolve_name(factory)(**kwargs)


def resolve_name(path: str) -> Any:
    """Import and return the object that "module:name" names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class DescribedSimulator:
    """A role that calls the static methods of a simulator's class without building the simulator.

    Args:
        factory: "module:Class" of the simulator.
    """

    def __init__(self, factory: str):
        self._simulator = resolve_name(factory)

    def ask(self, method: str, config: Any) -> Any:
        """Call a static method of the simulator: "spec_of", "diagnose" or "provenance"."""
        return getattr(self._simulator, method)(config)

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class RemoteFunction:
    """A placeholder for a function that a call returned, such as an operator's; the function stays in the worker."""

    number: int


class HostedRole:
    """A role as remote callers see it: its methods, its plain attributes, and the functions that it returned.

    Args:
        role: the role's object. The outputs of simulators are checked; see `simulator_checks.py`.
    """

    def __init__(self, role: Any):
        self._role, self._spec = role, getattr(role, "spec", None)
        self._functions: list[Callable[..., Any]] = []

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        """Call a method or read an attribute. "call_function" calls a function returned earlier, by its number."""
        if method == "call_function":
            return self._functions[args[0]](*args[1:])
        if method == "render_seconds":  # not every simulator measures its rendering time
            return getattr(self._role, method, 0.0)
        found = getattr(self._role, method)
        value = move_to_host(found(*args) if callable(found) else found)
        if isinstance(self._spec, SimulatorSpec):
            check_output(self._spec, method, args, value)
        if not callable(value):
            return value
        self._functions.append(value)
        return RemoteFunction(len(self._functions) - 1)


def exit_with_parent(descriptor: int) -> None:
    """Start a thread that ends this process as soon as the pipe's other end closes, even during a long call."""

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # only hang-up and errors
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()


def serve_calls(connection: Connection, memory: int) -> None:
    """Build the role that the first message names, after the delay that it gives, then answer calls until "close"."""
    send_greeting(connection)
    factory, kwargs, delay = receive(connection)
    time.sleep(delay)
    built = attempt_call(build_role, factory, kwargs)
    if isinstance(built, CallFailure):
        return send(connection, built)
    role = built.value
    spec = getattr(role, "spec", None)  # only simulators have one; other roles return no images
    slots = ImageSlots(memory, () if spec is None else spec.cameras, kwargs.get("num_envs", 0))
    send(connection, replace(built, value=None if spec is None else replace(spec, device="cpu")))
    hosted, slot, method, lists = HostedRole(role), 0, "", ShortenedLists()
    while method != "close":
        method, args = receive(connection)
        args = lists.restore(method, args)
        following = (slot + 1) % SLOTS
        reply = attempt_call(lambda: slots.put(hosted.call(method, args), following))  # noqa: B023  called at once
        if isinstance(reply, Reply) and isinstance(reply.value, Observation | StepResult):
            reply.slot = slot = following
        send(connection, reply)


def attempt_call(function: Callable[..., Any], *args: Any) -> Reply | CallFailure:
    """Call a function and return its result or its exception in a form that can be sent to another process."""
    began = time.monotonic()
    try:
        value = function(*args)
    except NotFinite as error:
        return CallFailure(str(error), traceback.format_exc(), error.row)
    except Unavailable as error:
        return CallFailure(str(error), traceback.format_exc(), unavailable=True)
    except RunFailed as error:
        return CallFailure(str(error), "", worker_failed=True)
    except ModuleNotFoundError as error:
        return CallFailure(f"{type(error).__name__}: {error}", traceback.format_exc(), missing=error.name or "")
    except FloatingPointError as error:
        return CallFailure(str(error), traceback.format_exc(), not_finite=True)
    except UserError as error:
        return CallFailure(str(error), traceback.format_exc(), refused=True, code=error.code)
    except Exception as error:  # noqa: BLE001  a process border: the parent must see every error
        return CallFailure(f"{type(error).__name__}: {error}", traceback.format_exc())
    return Reply(value, began, time.monotonic() - began, 0)


def prepare_child() -> int:
    """Set up a child process: signals, fault handler, exit with the parent. Return the descriptor of its pipe."""
    pipe = int(sys.argv[1])
    receive_terminal()
    for descriptor in sys.argv[1:]:
        os.set_inheritable(int(descriptor), False)
    faulthandler.enable()
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    for number in numbers:  # they reach all processes: the parent decides, and ends this one by closing the pipe
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    exit_with_parent(pipe)
    return pipe


def main() -> None:
    """Run a worker; its command line holds the descriptors of the pipe and of the shared memory."""
    with Connection(prepare_child()) as connection:
        serve_calls(connection, int(sys.argv[2]))
