"""Work folders: uploaded once, named by what is in them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from presage.control.people.accounts import UserRole, require
from presage.control.records.retention import touch_folder
from presage.model.errors import NoSpace, NotFound, TooLarge, UserError
from presage.server.routes.common import Me, Parts

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["folders"])

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


class Folder(BaseModel):
    """A folder that is there."""

    sha256: str
    bytes: int


@router.put("/folders/{sha256}", status_code=201, response_model=Folder, openapi_extra=_UPLOAD)
async def put_folder(sha256: Digest, request: Request, service: Parts, me: Me) -> Folder:
    """Upload a gzipped tar of a work folder; the name must be the SHA-256 of what is sent."""
    require(me, UserRole.USER)
    target = service.layout.folder(sha256)
    draft = target.with_name(f".{secrets.token_hex(8)}.part")
    digest, size = hashlib.sha256(), 0
    try:
        with draft.open("wb") as file:
            async for chunk in request.stream():
                size += len(chunk)
                if size > service.settings.most_folder:
                    raise TooLarge(f"a folder has at most {service.settings.most_folder} bytes")
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
    return Folder(sha256=sha256, bytes=size)


@router.head("/folders/{sha256}", status_code=204, response_class=Response)
def has_folder(sha256: Digest, service: Parts, me: Me) -> Response:
    """Whether a folder is there already."""
    require(me, UserRole.USER)
    if not service.layout.folder(sha256).is_file():
        raise NotFound("that folder was not uploaded")
    touch_folder(service.layout.folder(sha256))
    return Response(status_code=204)
