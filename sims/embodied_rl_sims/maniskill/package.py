"""Build ManiSkill's environments; report missing parts and assets, and the command that installs them."""

import difflib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Unavailable
from embodied_rl_sims.maniskill.plate_parts import PACKAGE_ASSETS, Files
from embodied_rl_sims.maniskill.plate_scenes import SPLITS
from embodied_rl_sims.maniskill.settings import ManiSkillConfig


def list_missing_assets(entry: Any, others: Sequence[str] = ()) -> list[str]:
    """List the declared assets of a task, and others, that are incomplete on this machine."""
    assets = import_module("mani_skill.utils.assets")

    def is_here(uid: str) -> bool:
        is_group = uid in assets.DATA_GROUPS
        parts = assets.expand_data_group_into_individual_data_source_ids(uid) if is_group else [uid]
        return all(assets.is_data_source_downloaded(part) for part in parts)

    return [uid for uid in (*(entry.asset_download_ids or ()), *others) if not is_here(uid)]


def check_assets(config: ManiSkillConfig) -> None:
    """Check that a task's assets are complete on this machine. Raises `Unavailable`: one is missing."""
    missing = list_missing_assets(find_entry(config), PACKAGE_ASSETS if config.has_plates and not config.shapes else ())
    if missing:
        raise explain_missing(config.task, missing)
    if config.has_plates and not config.shapes:
        Files(config.assets).check(SPLITS[config.task])


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


_DRIVER = (
    "ManiSkill needs a Vulkan driver, even without pictures, and found none that serves ({error}). On a machine with "
    "an NVIDIA GPU, install its driver with Vulkan. On one without, Mesa's software driver of 24.0 or newer serves: "
    "apt install libvulkan1 mesa-vulkan-drivers; on Debian 12 take mesa-vulkan-drivers from bookworm-backports. Point "
    "VK_DRIVER_FILES to the driver's .json file where it is not in the usual place; 'vulkaninfo --summary' lists what "
    "is found."
)
_DRIVER_ERRORS = ("vk::", "Vulkan", "physical device", "rendering device")


def make_environment(config: ManiSkillConfig, num_envs: int = 1) -> Any:
    """Build a `mani_skill.envs.sapien_env.BaseEnv` with observation mode "none".

    Raises:
        UserError: the package lacks the task, or the task lacks the control mode, robot or reward.
        Unavailable: an asset, a Vulkan driver or a CUDA device is missing.
    """
    check_device(config)
    check_assets(config)
    width, height = config.picture_size
    cameras: dict[str, Any] = {"width": width, "height": height, "shader_pack": config.shader}
    keywords: dict[str, Any] = {} if config.robot is None else {"robot_uids": config.robot}
    if config.has_plates:
        keywords = {"shapes": config.shapes, "assets": config.assets}
        cameras["intrinsic"] = find_intrinsics(width, height)
    render_on = config.renderer
    if render_on == "auto":
        import torch

        render_on = "gpu" if torch.cuda.is_available() else "cpu"
    with _translated(config):
        made = import_module("gymnasium").make(
            config.task,
            num_envs=num_envs,
            obs_mode="none",
            control_mode=config.control_mode,
            reward_mode=config.reward,
            reconfiguration_freq=config.reconfiguration_freq,
            sim_backend="physx_cuda" if config.backend == "gpu" else "physx_cpu",
            render_backend=render_on,
            sensor_configs=cameras,
            human_render_camera_configs={"shader_pack": config.shader},
            **keywords,
        )
    return made.unwrapped


def find_intrinsics(width: int, height: int) -> Array:
    """Return the matrix of a picture's size for the camera of the put-on-plate tasks, a Logitech C920 of 640 × 480."""
    official = np.array([[623.588, 0, 319.501], [0, 623.588, 239.545], [0, 0, 1]])
    return official * np.array([[width / 640], [height / 480], [1]])


def check_device(config: ManiSkillConfig) -> None:
    """Check that a CUDA device exists if the settings require one. Raises `Unavailable`: it does not exist."""
    import torch

    if config.backend == "gpu" and not torch.cuda.is_available():
        raise Unavailable(
            f"sim.backend=gpu needs an NVIDIA GPU, and PyTorch {torch.__version__} of {sys.executable} finds none. "
            "Take sim.backend=cpu; or install the GPU's driver, and a PyTorch for CUDA in this environment."
        )


def find_entry(config: ManiSkillConfig) -> Any:
    """Return the package's entry of the task: its class, its limit of control steps, its assets.

    Raises:
        UserError: the task does not exist, or it lacks this reward.
    """
    import_module("mani_skill.envs")  # registers the tasks
    if config.has_plates:
        import_module("embodied_rl_sims.maniskill.plate_tasks")  # registers these
    tasks = import_module("mani_skill.utils.registration").REGISTERED_ENVS
    _check_name("task", config.task, list(dict.fromkeys([*tasks, *SPLITS])))
    if config.robot is not None:
        _check_name("robot", config.robot, list(import_module("mani_skill.agents").REGISTERED_AGENTS))
    entry = tasks[config.task]
    rewards = [name for name in entry.cls.SUPPORTED_REWARD_MODES if name != "none"]
    if config.reward not in rewards:
        known = f"it has {' and '.join(rewards)}" if rewards else "it has none"
        raise UserError(
            f"sim.reward={config.reward}: '{config.task}' has no such reward; {known}.", code="choice-unknown"
        )
    return entry


def _check_name(key: str, name: str, known: list[str]) -> None:
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"There are {len(known)}, as {', '.join(known[:5])}."
        raise UserError(f"sim.{key}={name}: ManiSkill has no such {key}. {hint}", code="choice-unknown")


@contextmanager
def _translated(config: ManiSkillConfig) -> Iterator[None]:
    """Convert the package's errors to messages for the user, and refuse its download question instead of waiting."""
    download_asset: Any = import_module("mani_skill.utils.download_asset")
    asked, download_asset.prompt_yes_no = download_asset.prompt_yes_no, refuse_download(config.task)
    try:
        yield
    except Unavailable:
        raise
    except AssertionError as error:
        if "not in supported modes" in str(error):
            raise UserError(f"sim.control_mode: {error}", code="choice-unknown") from error
        raise
    except (RuntimeError, OSError) as error:
        if any(text in str(error) for text in _DRIVER_ERRORS):
            raise Unavailable(_DRIVER.format(error=error)) from error
        if uids := find_named(str(error)):
            raise explain_missing(config.task, uids) from error
        raise
    finally:
        download_asset.prompt_yes_no = asked
