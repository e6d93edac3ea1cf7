"""ManiSkill's downloadable assets: find missing ones, and name the command that downloads them."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from embodied_rl.interfaces.sim import Unavailable


def list_missing_assets(entry: Any) -> list[str]:
    """List the declared assets of a task that are incomplete on this machine."""
    assets = import_module("mani_skill.utils.assets")

    def is_here(uid: str) -> bool:
        is_group = uid in assets.DATA_GROUPS
        parts = assets.expand_data_group_into_individual_data_source_ids(uid) if is_group else [uid]
        return all(assets.is_data_source_downloaded(part) for part in parts)

    return [uid for uid in entry.asset_download_ids or () if not is_here(uid)]


def explain_missing(task: str, uids: list[str]) -> Unavailable:
    """Build the error for missing assets of a task."""
    commands = " && ".join(f"{sys.executable} -m mani_skill.utils.download_asset {uid}" for uid in uids)
    return Unavailable(f"'{task}' needs the assets {', '.join(uids)}; this downloads them: {commands}")


def find_named(text: str) -> list[str]:
    """Return the assets that an error of the package names, by their id or by a path below them."""
    assets = import_module("mani_skill.utils.assets")
    words = set(re.findall(r"[\w/.-]+", text))
    known = [uid for uid in (*assets.DATA_SOURCES, *assets.DATA_GROUPS) if uid in words]
    if known:
        return known[:1]
    paths = {uid: str(source.output_dir / source.target_path) for uid, source in assets.DATA_SOURCES.items()}
    return [uid for uid, path in paths.items() if path in text][:1]


def refuse_download(task: str) -> Callable[[str], bool]:
    """Return a replacement of the package's interactive download question that always raises."""

    def answer(question: str) -> bool:
        raise explain_missing(task, find_named(question) or [task])

    return answer
