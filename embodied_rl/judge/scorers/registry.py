"""The scorer that a configuration means."""

from dataclasses import replace
from typing import Any

from embodied_rl.config import plugins
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.scorers.calibration import CalibratedConfig, CalibratedScorer
from embodied_rl.schema import RewardNode

WITHOUT_SERVER = {"vlm": ("url", "embedded")}
"""A scorer behind a server → the key that names the server, and who judges in its place where there is none."""


def resolve_scorer(node: RewardNode) -> RewardNode:
    """Return the settings of the scorer that judges: without a server, those of one that needs none.

    Raises:
        UserError: a key of the scorer behind a server is given, but no server.
    """
    key, instead = WITHOUT_SERVER.get(node.name or "", ("", ""))
    if not instead or node.options.get(key) is not None:
        return node
    if given := [name for name in node.options if name != key]:
        raise UserError(
            f"reward.{given[0]} belongs to a model behind a server: add reward.{key}=<its address>, such as "
            f"http://127.0.0.1:8000/v1. Without it reward={node.name} means the critic of reward={instead}.",
            code="scorer-without-server",
        )
    return replace(node, name=instead, options={})


def configure_scorer(node: RewardNode) -> tuple[type[Any], Any]:
    """Return the class of the configured scorer and its `Config`, or raise `UserError`."""
    chosen = plugins.configure_plugin("scorers", resolve_scorer(node), "reward")
    if node.calibration is None:
        return chosen
    return CalibratedScorer, CalibratedConfig(chosen, node.calibration)
