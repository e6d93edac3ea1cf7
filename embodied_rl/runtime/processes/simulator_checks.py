"""Checks of the outputs of simulators, made once, where an output leaves its simulator.

They cost microseconds: they read shapes and dtypes, never an array's entries. Imports NumPy and the standard library
only, so that it loads in a simulator's environment.

Shapes: n environments, H executed actions of a chunk, A action dimensions, S state and P privileged dimensions.
"""

from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation, SimulatorSpec, Source, StepResult

LONGEST_FAILURE = 80
"""Characters of a text in `StepResult.failures`."""
_REMEDY = "embodied_rl.testing.contract.check_simulator reports further errors"


class InvalidOutput(UserError):  # noqa: N818
    """An array, or another part of an output, that violates the interface of simulators."""


def check_output(spec: SimulatorSpec, method: str, args: tuple[Any, ...], output: Any) -> None:
    """Check the types, shapes and dtypes of what a method of a simulator returned.

    Args:
        method: "reset", "step", "restore" or "snapshot"; outputs of other methods are not checked.
        args: of the call; they give the number of environments and steps.
        output: what the method returned, its observations on the host.

    Raises:
        UserError: the output violates the interface; the message names method and array.
    """
    try:
        if method == "step":
            check_step_result(spec, output, *args[0].shape[:2])
        elif method == "reset":
            check_observation(spec, output, len(args[0]))
        elif method == "restore":
            check_observation(spec, output, None)
        elif method == "snapshot":
            check_snapshot(output)
    except InvalidOutput as error:
        raise UserError(f"the simulator's {method}: {error}; {_REMEDY}", error.code) from None


def check_step_result(spec: SimulatorSpec, result: Any, rows: int, executed: int) -> None:
    """Check types, shapes and dtypes of the result of a chunk of H executed actions in n environments.

    Raises:
        InvalidOutput: the message names the array.
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
    failures = result.failures
    if failures is not None:
        listed = isinstance(failures, tuple) and all(isinstance(text, str) for text in failures)
        _require(listed, "failures must be a tuple of texts, one for each row in `ended`, or None")
        _require(len(failures) == ended, f"{len(failures)} failures for {ended} rows in `ended`")
        longest = max(map(len, failures), default=0)
        _require(
            longest <= LONGEST_FAILURE, f"a failure of {longest} characters; at most {LONGEST_FAILURE} are allowed"
        )
    if (between := result.between) is not None:
        listed = isinstance(between, tuple) and len(between) == rows and all(map(_holds_counts, between))
        _require(listed, "between must be a tuple of pairs of a source and a count for each environment, or None")


def _holds_counts(pairs: Any) -> bool:
    """Return whether these are pairs of a source and a number of control steps."""
    sources = {int(source) for source in Source}
    whole = isinstance(pairs, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs)
    return whole and all(type(count) is int and count > 0 and source in sources for source, count in pairs)


def check_observation(spec: SimulatorSpec, observation: Any, rows: int | None) -> None:
    """Check types, shapes and dtypes of an observation of `rows` environments, or of any number if that is None.

    Raises:
        InvalidOutput: the message names the array.
    """
    _require(isinstance(observation, Observation), f"an Observation is missing: found {type(observation).__name__}")
    texts = observation.instruction
    listed = isinstance(texts, tuple | list) and all(isinstance(text, str) for text in texts)
    _require(listed, "instruction must be a tuple of texts, one for each environment")
    n = len(texts)
    _require(rows in (None, n), f"{n} instructions for {rows} rows")
    _require(isinstance(observation.images, dict), "images must be a dictionary with camera names as keys")
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
    agree = (observation.progress is not None) == spec.reports_progress
    _require(agree, "progress must be given if and only if the spec has reports_progress")
    if observation.progress is not None:
        _check_array("progress", observation.progress, (n,), np.float32)


def check_snapshot(snapshot: Any) -> None:
    """Check that a snapshot holds named arrays of plain numbers; raise `InvalidOutput` otherwise."""
    _require(isinstance(snapshot, dict), f"it must return a dictionary of arrays, not {type(snapshot).__name__}")
    for name, array in snapshot.items():
        plain = isinstance(array, np.ndarray) and not array.dtype.hasobject
        _require(plain, f"snapshot '{name}' is not an array of plain numbers")


def _check_array(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    _require(isinstance(array, np.ndarray), f"{name} must be a NumPy array, got {type(array).__name__}")
    _require(array.dtype == dtype, f"{name} must be {np.dtype(dtype)}, got {array.dtype}")
    _require(array.shape == shape, f"{name} must have shape {shape}, got {array.shape}")


def _require(valid: bool, problem: str) -> None:
    if not valid:
        raise InvalidOutput(problem, code="simulator-output-invalid")
