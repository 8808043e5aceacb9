"""Which bundle answers for a setting: a user's own, else the shipped one. Nothing is fitted here."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from presage.foresee.bursts.bundles import BurstBundle
from presage.foresee.bursts.settings import Setting
from presage.foresee.estimators import own_models

__all__ = ["SHIPPED", "bundle_for", "known_settings", "own_bundle"]

SHIPPED = Path(__file__).parents[1] / "models" / "bursts"


def own_bundle(setting: Setting) -> Path:
    """Where a user's own bundle of a setting is kept."""
    return own_models() / "bursts" / f"{setting.file}.npz"


def bundle_for(setting: Setting) -> BurstBundle | None:
    """The bundle that knows a setting, if there is one."""
    for path in (own_bundle(setting), SHIPPED / f"{setting.file}.npz"):
        if path.is_file():
            return _read(path, path.stat().st_mtime_ns)
    return None


def known_settings() -> list[Setting]:
    """Settings that a bundle knows, in order."""
    files = {path.stem for folder in (own_models() / "bursts", SHIPPED) for path in folder.glob("*.npz")}
    return sorted((Setting.parse(name.replace("-", "/")) for name in files), key=str)


@cache
def _read(path: Path, changed_ns: int) -> BurstBundle:
    return BurstBundle.load(path)
