"""Read the YAML configuration of a run's folder, a checkpoint or a prompt, which may come from untrusted sources."""

from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from embodied_rl.config.freeze import Config, freeze_config
from embodied_rl.interfaces.errors import UserError

_RESTORE = "Restore it from a copy; or start a new run from this one's weights: policy.checkpoint={}."
_DAMAGED = (
    YAMLError, ValueError, OmegaConfBaseException, OSError, RecursionError,
    IndexError, KeyError, AttributeError, TypeError,
)  # fmt: skip
"""What reading YAML raises; the last four come from values that are not what their tags (!!int) say."""


def load_config(kind: type[Config], path: Path) -> Config:
    """Read the configuration in a run's folder, which holds every key of `kind`.

    Raises:
        UserError: the file is missing or ends early, or does not fit `kind`; the message names the remedy.
    """
    try:
        mapping = read_config(path)
    except UserError as error:
        raise UserError(f"{str(error).rstrip()} {_RESTORE.format(path.parent)}", code=error.code) from None
    if (last := fields(kind)[-1].name) not in mapping:  # else defaults would silently replace what was cut off
        raise UserError(
            f"{path} is damaged: it ends before {last}. {_RESTORE.format(path.parent)}", code="config-damaged"
        )
    try:
        return freeze_config(kind, mapping)
    except UserError as error:
        raise UserError(f"{path}: {error}", code=error.code) from None


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML configuration as plain values. References are not resolved, because the file may be untrusted.

    Raises:
        UserError: the file is missing, is damaged, or holds no keys.
    """
    if not path.is_file():
        raise UserError(f"{path} is not there: is this the folder of a run?", code="config-missing")
    try:
        mapping = cast("Any", OmegaConf.to_container(OmegaConf.load(path), resolve=False))
    except _DAMAGED as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{path} is damaged: {problem:.300}", code="config-damaged") from None
    if not isinstance(mapping, dict):
        raise UserError(f"{path} is damaged: it holds no keys.", code="config-damaged")
    return {str(key): value for key, value in cast("dict[Any, Any]", mapping).items()}
