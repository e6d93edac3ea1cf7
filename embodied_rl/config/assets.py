"""Find files shipped with the package, mainly base checkpoints: in `assets/` of a checkout, or inside a wheel."""

from pathlib import Path

from embodied_rl.config import hub
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError

PREFIX = "asset:"


def find_assets_folder() -> Path:
    """Return the folder of all assets."""
    package = Path(__file__).parents[1]
    packaged = package / "_assets"
    return packaged if packaged.is_dir() else package.parent / "assets"


def find_asset(name: str) -> Path:
    """Return the path of the asset `name`. Raises `UserError`: unknown asset, or the name leads out of the folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(f"{PREFIX}{name}: assets lie in their own folder; .. is not allowed.", code="asset-outside")
    folder = find_assets_folder()
    found = folder / name
    if not found.exists():
        known = sorted(str(item.relative_to(folder)) for item in folder.rglob("*.safetensors"))
        suggestion = suggest_name(name, known) or f" {folder} is empty."
        raise UserError(f"there is no asset '{name}'.{suggestion}", code="asset-unknown")
    return found


def resolve_path(text: str) -> Path:
    """Return the path of a configuration value: an asset, what was downloaded from the Hub, or a plain path.

    Raises:
        UserError: there is no such asset, or it was not downloaded; nothing is downloaded here.
    """
    if text.startswith(hub.PREFIX):
        return hub.find_downloaded(text)
    return find_asset(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else Path(text)
