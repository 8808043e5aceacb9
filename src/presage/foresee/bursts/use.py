"""Which bundle answers for a setting: a user's own, by the setting's name. Nothing is fitted here,
and none is shipped."""

from __future__ import annotations

from pathlib import Path

from presage.foresee.bursts.bundles import BurstBundle
from presage.foresee.bursts.settings import Setting
from presage.foresee.estimators import own_models

__all__ = ["bundle_for", "own_bundle"]


def own_bundle(setting: Setting) -> Path:
    """Where the bundle of a setting is kept."""
    return own_models() / "bursts" / f"{setting.file}.npz"


def bundle_for(setting: Setting) -> BurstBundle | None:
    """The bundle that knows a setting, if there is one."""
    path = own_bundle(setting)
    return BurstBundle.load(path) if path.is_file() else None
