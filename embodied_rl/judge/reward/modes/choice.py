"""Which class is which mode."""

from embodied_rl.judge.reward.modes.audit import Audit
from embodied_rl.judge.reward.modes.base import Mode, ModeOptions
from embodied_rl.judge.reward.modes.distill import Distill
from embodied_rl.judge.reward.modes.rises import Rises
from embodied_rl.judge.reward.modes.shaping import Shaping
from embodied_rl.judge.reward.modes.terminal import Terminal

_MODES: dict[str, type[Audit | Distill | Rises | Shaping | Terminal]] = {
    "audit": Audit,
    "distill": Distill,
    "late": Shaping,
    "sync": Shaping,  # differs in when it waits
    "terminal": Terminal,
    "rises": Rises,
}


def make_mode(options: ModeOptions) -> Mode:
    """Return what `reward.mode` names."""
    return _MODES[options.reward.mode](options)
