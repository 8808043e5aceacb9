"""Numbers of bytes as people read them."""

from __future__ import annotations

__all__ = ["count_text", "size_text"]


def size_text(size: float) -> str:
    """`812 B`, `1.4 MiB`, `23 GiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1000 and len(units) > 1:
        size /= 1024
        units.pop(0)
    unit = units[0]
    return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"


def count_text(count: int, one: str, many: str = "") -> str:
    """`1 file`, `1,200 files`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
