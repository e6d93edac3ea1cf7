"""Checks of a simulator's spec at its construction. Imports NumPy and the standard library only."""

import reprlib
from numbers import Integral, Real
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError

Spec = Any
"""A `SimulatorSpec` or its `Camera`, which import this module."""
_NAMES = ("state_names", "action_names", "privileged_names", "words", "splits", "kept_while_holding")
_ROLES = ("policy", "score", "video")
_FINALS = ("exact", "previous")
_SHOW = reprlib.Repr()
_SHOW.maxother = 100


def check_spec(spec: Spec) -> None:
    """Check that the fields of a spec are plausible and agree with each other.

    Raises:
        UserError: a field is wrong; the message names it and its value.
    """
    for field in _NAMES:
        _check_names(field, getattr(spec, field))
    _require("train" not in spec.splits, "splits", "without 'train', which is not a held-out split", spec.splits)
    _check_cameras(spec.cameras)
    _check_limits(spec)
    _require(_is_finite(spec.control_hz) and spec.control_hz > 0, "control_hz", "finite, above 0", spec.control_hz)
    _require(_counts(spec.horizon, 1), "horizon", "a whole number of at least 1", spec.horizon)
    length = spec.instruction_length
    _require(_counts(length, 0), "instruction_length", "a whole number of at least 0", length)
    _check_tasks(spec.tasks)
    _check_hold(spec)
    _require(spec.final_observation in _FINALS, "final_observation", f"one of {_FINALS}", spec.final_observation)


def _check_names(field: str, names: Any) -> None:
    _require(isinstance(names, tuple | list), field, "a tuple of names", names)
    _require(all(isinstance(name, str) for name in names), field, "a tuple of texts", names)
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    _require(not twice, field, "distinct names", twice)


def _check_named(field: str, items: Any) -> None:
    _require(isinstance(items, tuple | list), field, f"a tuple of {field}", items)
    named = all(isinstance(getattr(item, "name", None), str) for item in items)
    _require(named, field, f"a tuple of {field} with names", items)
    _check_names(field, [item.name for item in items])


def _check_cameras(cameras: tuple[Spec, ...]) -> None:
    _check_named("cameras", cameras)
    for camera in cameras:
        sized = _counts(camera.height, 1) and _counts(camera.width, 1)
        _require(sized, "cameras", "of at least 1 × 1 pixels", camera)
        _require(camera.role in _ROLES, "cameras", f"in one of the roles {_ROLES}", camera)


def _check_limits(spec: Spec) -> None:
    for field in ("action_low", "action_high"):
        limits: Any = getattr(spec, field)
        fits = _is_listed(limits) and len(limits) == len(spec.action_names)
        _require(fits, field, f"one number for each of the {len(spec.action_names)} action_names", limits)
        _require(all(_is_finite(limit) for limit in limits), field, "finite", limits)
    ordered = all(low < high for low, high in zip(spec.action_low, spec.action_high, strict=True))
    _require(ordered, "action_low", f"below action_high ({_SHOW.repr(spec.action_high)})", spec.action_low)


def _check_hold(spec: Spec) -> None:
    unknown = [name for name in spec.kept_while_holding if name not in spec.action_names]
    _require(not unknown, "kept_while_holding", "names of action_names", unknown)
    if spec.hold is None:
        _require(not spec.kept_while_holding, "kept_while_holding", "empty without hold", spec.kept_while_holding)
        return
    fits = _is_listed(spec.hold) and len(spec.hold) == len(spec.action_names) and all(map(_is_finite, spec.hold))
    _require(fits, "hold", f"one number for each of the {len(spec.action_names)} action_names", spec.hold)
    limits = zip(spec.action_low, spec.hold, spec.action_high, strict=True)
    _require(all(low <= value <= high for low, value, high in limits), "hold", "within the action's limits", spec.hold)


def _check_tasks(tasks: Any) -> None:
    _check_named("tasks", tasks)
    _require(len(tasks) > 0, "tasks", "at least one task", tasks)
    for task in tasks:
        _require(_counts(task.initial_states, 0), "tasks", "with initial_states of at least 0", task)


def _is_listed(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _counts(value: Any, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= least


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and bool(np.isfinite(float(value)))


def _require(sound: bool, field: str, wanted: str, found: Any) -> None:
    if not sound:
        raise UserError(f"SimulatorSpec.{field} must be {wanted}; it is {_SHOW.repr(found)}.", code="spec-invalid")
