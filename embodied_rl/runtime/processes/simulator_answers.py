"""The checks of what a simulator answers, made once, where an answer leaves its simulator for the engine.

They cost microseconds: they read shapes and dtypes, never an array's entries. Imports NumPy and the standard library
only, so that it loads wherever a simulator does.

Shapes: n environments, H executed actions of a chunk, A action dimensions, S state and P privileged dimensions.
"""

from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation, SimulatorSpec, StepResult

LONGEST_FAILURE = 80
"""Characters of a text in `StepResult.failures`."""
_REMEDY = "embodied_rl.testing.contract.check_simulator tells what else is wrong with a simulator"


class AnswerError(UserError):
    """An error for an array, or another part of an answer, that is not what the interface of simulators says."""


def check_answer(spec: SimulatorSpec, method: str, args: tuple[Any, ...], answer: Any) -> None:
    """Check the types, shapes and dtypes of what a method of a simulator returned.

    Args:
        spec: of the simulator.
        method: "reset", "step", "restore" or "snapshot"; the answers of others are not checked.
        args: of the call; they say how many environments and steps there are.
        answer: what the method returned, its observations on the host.

    Raises:
        UserError: the answer breaks the interface; the message names method and array.
    """
    try:
        if method == "step":
            check_result(spec, answer, *args[0].shape[:2])
        elif method == "reset":
            check_observation(spec, answer, len(args[0]))
        elif method == "restore":
            check_observation(spec, answer, None)
        elif method == "snapshot":
            check_snapshot(answer)
    except AnswerError as error:
        raise UserError(f"the simulator's {method}: {error}; {_REMEDY}") from None


def check_result(spec: SimulatorSpec, result: Any, rows: int, executed: int) -> None:
    """Check types, shapes and dtypes of the result of a chunk of H executed actions in n environments.

    Raises:
        AnswerError: the message names the array.
    """
    _require(isinstance(result, StepResult), f"it must return a StepResult, not {type(result).__name__}")
    per_step = (rows, executed)
    _check_array("reward", result.reward, per_step, np.float32)
    _check_array("success", result.success, per_step, np.bool_)
    _check_array("steps", result.steps, (rows,), np.int64)
    _check_array("executed", result.executed, (*per_step, spec.action_dim), np.float32)
    _check_array("source", result.source, per_step, np.uint8)
    _check_array("terminated", result.terminated, (rows,), np.bool_)
    _check_array("truncated", result.truncated, (rows,), np.bool_)
    _check_array("ended", result.ended, (np.size(result.ended),), np.int64)
    check_observation(spec, result.observation, rows)
    final, ended = result.final_observation, len(result.ended)
    _require((final is None) == (ended == 0), f"final_observation is None iff none ended; {ended} rows ended")
    if final is not None:
        check_observation(spec, final, ended)
    if result.failures is not None:
        _check_failures(result.failures, ended)


def check_observation(spec: SimulatorSpec, observation: Any, rows: int | None) -> None:
    """Check types, shapes and dtypes of an observation; without `rows`, only that its arrays agree on them.

    Raises:
        AnswerError: the message names the array.
    """
    _require(isinstance(observation, Observation), f"an Observation is missing: found {type(observation).__name__}")
    _check_instructions(observation.instruction, rows)
    n = len(observation.instruction)
    _require(isinstance(observation.images, dict), "images must be a dictionary, by the name of the camera")
    cameras = {camera.name for camera in spec.cameras}
    found = sorted(observation.images)
    _require(set(found) == cameras, f"images are not those of the cameras {sorted(cameras)}, but {found}")
    for camera in spec.cameras:
        shape = (n, camera.height, camera.width, 3)
        _check_array(f"camera '{camera.name}'", observation.images[camera.name], shape, np.uint8)
    _check_array("state", observation.state, (n, len(spec.state_names)), np.float32)
    agree = (observation.privileged is None) == (not spec.privileged_names)
    _require(agree, "privileged state and its names disagree")
    if observation.privileged is not None:
        _check_array("privileged", observation.privileged, (n, len(spec.privileged_names)), np.float32)
    told = (observation.progress is not None) == spec.reports_progress
    _require(told, "progress is there if and only if the spec says reports_progress")
    if observation.progress is not None:
        _check_array("progress", observation.progress, (n,), np.float32)


def check_snapshot(snapshot: Any) -> None:
    """Check that a snapshot holds named arrays of plain numbers.

    Raises:
        AnswerError: the message names the entry.
    """
    _require(isinstance(snapshot, dict), f"it must return a dictionary of arrays, not {type(snapshot).__name__}")
    for name, array in snapshot.items():
        plain = isinstance(array, np.ndarray) and not array.dtype.hasobject
        _require(plain, f"snapshot '{name}' is no array of plain numbers")


def _check_instructions(texts: Any, rows: int | None) -> None:
    listed = isinstance(texts, tuple | list) and all(isinstance(text, str) for text in texts)
    _require(listed, "instruction must be a tuple of texts, one for each environment")
    _require(rows in (None, len(texts)), f"{len(texts)} instructions for {rows} rows")


def _check_failures(texts: Any, ended: int) -> None:
    listed = isinstance(texts, tuple) and all(isinstance(text, str) for text in texts)
    _require(listed, "failures must be a tuple of texts, one for each row in `ended`, or None")
    _require(len(texts) == ended, f"{len(texts)} failures for {ended} rows in `ended`")
    longest = max(map(len, texts), default=0)
    _require(longest <= LONGEST_FAILURE, f"a failure of {longest} characters; at most {LONGEST_FAILURE} name its kind")


def _check_array(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise AnswerError(f"{name} must be a NumPy array, got {type(array).__name__}")
    if array.dtype != dtype:
        raise AnswerError(f"{name} must be {np.dtype(dtype)}, got {array.dtype}")
    if array.shape != shape:
        raise AnswerError(f"{name} must have shape {shape}, got {array.shape}")


def _require(sound: bool, problem: str) -> None:
    if not sound:
        raise AnswerError(problem)
