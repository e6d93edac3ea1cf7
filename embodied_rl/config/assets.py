"""Files that travel with the package, base checkpoints above all: from `assets/` of a checkout, or inside a wheel."""

from pathlib import Path

from embodied_rl.config.freeze import did_you_mean
from embodied_rl.interfaces.errors import UserError

PREFIX = "asset:"


def root() -> Path:
    """The folder of all assets."""
    package = Path(__file__).parents[1]
    packaged = package / "_assets"
    return packaged if packaged.is_dir() else package.parent / "assets"


def path(name: str) -> Path:
    """Where the asset `name` lies.

    Raises:
        UserError: there is no such asset.
    """
    found = root() / name
    if not found.exists():
        known = sorted(str(item.relative_to(root())) for item in root().rglob("*.safetensors"))
        raise UserError(f"there is no asset '{name}'.{did_you_mean(name, known) or f' Nothing lies in {root()}.'}")
    return found


def resolve(text: str) -> Path:
    """A path as configurations hold it: `asset:<name>` for an asset, anything else as it stands."""
    return path(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else Path(text)
