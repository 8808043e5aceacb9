"""Numbers of bytes as people read them."""

from __future__ import annotations

__all__ = ["count_text", "size_text"]


def size_text(size: float) -> str:
    """`812 B`, `1.4 MiB`, `23 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            break
        size /= 1024
    else:
        unit = "TiB"
    return f"{size:.0f} {unit}" if unit == "B" or size >= 9.95 else f"{size:.1f} {unit}"


def count_text(count: int, one: str, many: str = "") -> str:
    """`1 file`, `1,200 files`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
