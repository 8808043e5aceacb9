"""What people write after an option: times and lists of names."""

from __future__ import annotations

from presage.manifest.quantities import duration_s
from presage.model.errors import UserError

__all__ = ["listed", "seconds"]


def seconds(text: str, option: str) -> float:
    """A time above zero: `15s`, `10m`, `1h30m`, or a number of seconds."""
    try:
        plain = text.strip().replace(".", "", 1).isdecimal()
        length_s = duration_s(float(text) if plain else text)
    except ValueError as wrong:
        raise UserError(f"{option}: {wrong}") from None
    if length_s <= 0:
        raise UserError(f"{option}: give a time above 0, such as 15s or 10m, not {text!r}")
    return length_s


def listed(text: str, option: str) -> list[str]:
    """Names with commas between, each once."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UserError(f"{option} names nothing; give names with commas between")
    return names
