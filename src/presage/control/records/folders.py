"""Work folders of jobs: packed, uploaded once, named by the SHA-256 of what was sent. Nothing is
unpacked or removed here (`retention.py` removes)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterable

from presage.control.records.retention import touch_folder
from presage.layout import Layout
from presage.model.errors import NoSpace, TooLarge, UserError

__all__ = ["has_folder", "keep_folder"]


async def keep_folder(layout: Layout, sha256: str, chunks: AsyncIterable[bytes], most: int) -> int:
    """Keep what is sent, whole or not at all, if it is what its name says; its size."""
    target = layout.folder(sha256)
    draft = target.with_name(f".{secrets.token_hex(8)}.part")
    digest, size = hashlib.sha256(), 0
    try:
        with draft.open("wb") as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > most:
                    raise TooLarge(f"a folder has at most {most} bytes")
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        if digest.hexdigest() != sha256:
            raise UserError("what was sent is not what the SHA-256 in the address names")
        draft.replace(target)
    except OSError as error:
        raise NoSpace(f"the folder could not be kept: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return size


def has_folder(layout: Layout, sha256: str) -> bool:
    """Whether a folder is there; it counts as new then, since somebody is about to use it."""
    path = layout.folder(sha256)
    if not path.is_file():
        return False
    touch_folder(path)
    return True
