"""LeRobotDataset v3.0: `DatasetWriter`, `LeRobotDataset` and `SampleStream`, on pyarrow and PyAV alone.

The format is that of huggingface/lerobot, src/lerobot/datasets; docs/datasets.md says what is written.
"""

from importlib.util import find_spec

from embodied_rl.interfaces.sim import Unavailable

if missing := [name for name in ("av", "pyarrow") if find_spec(name) is None]:
    raise Unavailable(
        f"LeRobotDataset needs the package{'s' if len(missing) > 1 else ''} {' and '.join(missing)}, not installed "
        "here. Run: pip install 'embodied-rl[lerobot]'"
    )
