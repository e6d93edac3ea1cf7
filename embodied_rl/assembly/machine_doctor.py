"""`embodied-rl doctor`: what this machine lacks for training, and the remedies."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from embodied_rl.config import assets
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Diagnosis
from embodied_rl.runs.provenance import count_cores
from embodied_rl.schema.checks import check_folder

GIB = 1024**3
_FALLING_CUBE = '<mujoco><worldbody><body><freejoint/><geom size=".1"/></body></worldbody></mujoco>'
_OPEN_EGL = "import mujoco; context = mujoco.GLContext(16, 16); context.make_current(); context.free()"


def examine_machine(run_root: Path) -> list[Diagnosis]:
    """Run all checks of the machine, for runs stored in `run_root`."""
    return [
        *(check() for check in (check_python, check_system, check_torch)),
        *(check() for check in (check_cores, check_memory, check_shared_memory)),
        check_disk(run_root),
        check_run_root(run_root),
        *(check() for check in (check_mujoco, check_egl, check_video_encoder, check_base_checkpoint)),
    ]


def check_python() -> Diagnosis:
    """Check that the package supports this Python version, and that it is the tested one."""
    found, version = platform.python_version(), sys.version_info[:2]
    if version < (3, 11):
        return Diagnosis("Python", "fail", found, "install Python 3.11 or newer, then run make again")
    if version != (3, 11):
        remedy = "tested: Python 3.11 (on 3.12 the default tests were run once); use it if something fails"
        return Diagnosis("Python", "warn", found, remedy)
    return Diagnosis("Python", "ok", found)


def check_system() -> Diagnosis:
    """Check that the operating system is the tested one."""
    tested = platform.system() == "Linux"
    remedy = "" if tested else "tested: Linux; use it, or a container of it, if something fails"
    return Diagnosis("system", "ok" if tested else "warn", platform.platform(), remedy)


def check_torch() -> Diagnosis:
    """Check that torch can be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return Diagnosis("torch", "fail", str(error), "pip install -c constraints.txt torch")
    return Diagnosis("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")


def check_cores() -> Diagnosis:
    """Check the number of cores that this process may use, and their load."""
    usable, physical = count_cores(), psutil.cpu_count(logical=False)
    found = f"{usable} usable ({physical} physical), load {os.getloadavg()[0]:.1f}"
    if usable < 2:
        return Diagnosis("cores", "warn", found, "training works on one core, at half the speed: plan.ranks=1")
    if os.getloadavg()[0] > usable:
        return Diagnosis("cores", "warn", found, "other programs are using the cores: expect slower training")
    return Diagnosis("cores", "ok", found)


def check_memory() -> Diagnosis:
    """Check that memory is enough for the simulators, the rollout and the policy."""
    available = psutil.virtual_memory().available
    found = f"{available / GIB:.1f} GiB available of {psutil.virtual_memory().total / GIB:.1f}"
    return _enough(
        "memory",
        available,
        1.5 * GIB,
        3 * GIB,
        found,
        "close other programs, or use fewer environments: sim.num_envs=32",
    )


def check_shared_memory() -> Diagnosis:
    """Check that shared memory is enough to send images between processes."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Diagnosis("shared memory", "warn", "no /dev/shm", "plan=split needs it; plan=colocated does not")
    free = shutil.disk_usage(folder).free
    remedy = "give the container more, such as --shm-size=1g; plan=colocated needs none"
    return _enough("shared memory", free, 32 * 1024**2, 256 * 1024**2, f"{free / GIB:.2f} GiB free", remedy)


def check_disk(run_root: Path) -> Diagnosis:
    """Check that disk space is enough for checkpoints and videos."""
    existing = next(folder for folder in (run_root, *run_root.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    return _enough(
        "disk", free, 0.2 * GIB, 2 * GIB, f"{free / GIB:.1f} GiB free", "free some space, or choose run.root=<folder>"
    )


def check_run_root(run_root: Path) -> Diagnosis:
    """Check that the folder of runs is writable."""
    try:
        check_folder(str(run_root), "run.root")
    except UserError as error:
        return Diagnosis("run folder", "fail", str(error), "choose run.root=<a folder you may write>")
    return Diagnosis("run folder", "ok", str(run_root))


def check_mujoco() -> Diagnosis:
    """Check that MuJoCo can be imported, and that a body falls in a simulation step."""
    try:
        import mujoco
    except (ImportError, OSError) as error:
        return Diagnosis("MuJoCo", "fail", str(error), "pip install -c constraints.txt mujoco")
    model = mujoco.MjModel.from_xml_string(_FALLING_CUBE)
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data)
    falls = data.qvel[2] < 0
    remedy = "" if falls else "reinstall it: pip install --force-reinstall -c constraints.txt mujoco"
    return Diagnosis("MuJoCo", "ok" if falls else "fail", mujoco.__version__, remedy)


def check_egl() -> Diagnosis:
    """Check OpenGL without a display, which only `sim.renderer=egl` needs; use a subprocess, because it may crash."""
    environment = {**os.environ, "MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}
    remedy = "optional, for sim.renderer=egl: apt install libegl1 libgl1-mesa-dri, or a GPU driver"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _OPEN_EGL], env=environment, capture_output=True, text=True, timeout=30, check=False
        )
    except subprocess.TimeoutExpired:
        return Diagnosis("EGL", "warn", "no answer in 30 s", remedy)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Diagnosis("EGL", "warn", f"absent: {lines[-1][:80]}", remedy)
    return Diagnosis("EGL", "ok", "works")


def check_video_encoder() -> Diagnosis:
    """Check that the video encoder is available."""
    try:
        import imageio_ffmpeg

        return Diagnosis("video encoder", "ok", f"ffmpeg {imageio_ffmpeg.get_ffmpeg_version()}")
    except (ImportError, RuntimeError) as error:
        remedy = "pip install --force-reinstall -c constraints.txt imageio-ffmpeg"
        return Diagnosis("video encoder", "warn", str(error).partition("\n")[0], remedy)


def check_base_checkpoint() -> Diagnosis:
    """Check that the package contains base checkpoints, from which training starts."""
    found = sorted(assets.find_assets_folder().glob("*.safetensors")) if assets.find_assets_folder().is_dir() else []
    if not found:
        remedy = "reinstall the package, or make one: embodied-rl sft experiment=tabletop_sft"
        return Diagnosis("base checkpoint", "warn", f"none in {assets.find_assets_folder()}", remedy)
    return Diagnosis(
        "base checkpoint", "ok", ", ".join(f"{path.name} ({path.stat().st_size / 1e6:.1f} MB)" for path in found)
    )


def _enough(name: str, value: float, least: float, wanted: float, found: str, remedy: str) -> Diagnosis:
    if value >= wanted:
        return Diagnosis(name, "ok", found)
    return Diagnosis(name, "fail" if value < least else "warn", found, remedy)
