"""Find files shipped with the package, mainly base checkpoints: in `assets/` of a checkout, or inside a wheel."""

from pathlib import Path

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError

PREFIX = "asset:"


def find_assets_folder() -> Path:
    """Return the folder of all assets."""
    package = Path(__file__).parents[1]
    packaged = package / "_assets"
    return packaged if packaged.is_dir() else package.parent / "assets"


def find_asset(name: str) -> Path:
    """Return the path of the asset `name`.

    Raises:
        UserError: there is no such asset, or the name leads out of the folder.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(f"{PREFIX}{name}: the name of an asset does not lead out of the folder of assets.")
    found = find_assets_folder() / name
    if not found.exists():
        known = sorted(
            str(item.relative_to(find_assets_folder())) for item in find_assets_folder().rglob("*.safetensors")
        )
        raise UserError(
            f"there is no asset '{name}'.{suggest_name(name, known) or f' Nothing lies in {find_assets_folder()}.'}"
        )
    return found


def resolve_path(text: str) -> Path:
    """Return the path that a configuration value means: `asset:<name>` is an asset, anything else a plain path."""
    return find_asset(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else Path(text)
