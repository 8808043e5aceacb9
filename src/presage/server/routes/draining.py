"""What a drain of a node would do, before somebody asks for it."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from presage.control.people.accounts import UserRole, require
from presage.control.views.cluster import drain_view
from presage.model.page_answers import DrainOutlook
from presage.server.routes.common import Me, Parts

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["cluster"])


@router.get("/nodes/{name}/drain", response_model=DrainOutlook)
async def drain_outlook(name: str, service: Parts, me: Me) -> JSONResponse:
    """The jobs that a drain of this node would move, and what each would lose at most; for
    operators."""
    require(me, UserRole.OPERATOR)
    return JSONResponse(await drain_view(service, name))
