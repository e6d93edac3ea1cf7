"""Import transformers when a network is built, not when only a network's sizes are read."""

from importlib import import_module
from typing import Any

from embodied_rl.interfaces.errors import UserError


def import_transformers(network: str, module: str = "") -> Any:
    """Import transformers, or a module of it.

    Args:
        network: name of the network that needs it, for the message.
        module: name of the module, without "transformers."; empty for the package.

    Raises:
        UserError: transformers is not installed, or its version is not the required one.
    """
    try:
        return import_module(f"transformers.{module}" if module else "transformers")
    except ImportError as error:
        remedy = "pip install 'transformers>=5.23,<5.24'"
        raise UserError(
            f"{network} needs the package transformers 5.23 ({error}): {remedy}", code="package-missing"
        ) from error
