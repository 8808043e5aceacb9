"""Work folders: uploaded once, named by what is in them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from presage.control.people.accounts import UserRole, require
from presage.control.records import folders
from presage.model.errors import NotFound
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
    most = service.settings.most_folder
    size = await folders.keep_folder(service.layout, sha256, request.stream(), most)
    return Folder(sha256=sha256, bytes=size)


@router.head("/folders/{sha256}", status_code=204, response_class=Response)
def has_folder(sha256: Digest, service: Parts, me: Me) -> Response:
    """Whether a folder is there already."""
    require(me, UserRole.USER)
    if not folders.has_folder(service.layout, sha256):
        raise NotFound("that folder was not uploaded")
    return Response(status_code=204)
