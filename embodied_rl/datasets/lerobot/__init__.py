"""Reader and writer of LeRobotDataset v3.0: `DatasetWriter`, `LeRobotDataset`, `SampleStream`. Needs pyarrow and PyAV.

The format is that of huggingface/lerobot, src/lerobot/datasets; docs/datasets.md describes the files.
"""

from importlib.util import find_spec

from embodied_rl.interfaces.sim import Unavailable

if missing := [name for name in ("av", "pyarrow") if find_spec(name) is None]:
    raise Unavailable(
        f"LeRobotDataset needs the package{'s' if len(missing) > 1 else ''} {' and '.join(missing)}, not installed "
        "here. Run: pip install 'embodied-rl[lerobot]'"
    )
