"""The mutating webhook for pods: AdmissionReview in, AdmissionReview out.

The API server of Kubernetes has no token of ours, so none is asked for: what is answered says what
the pod that was sent should ask for, and nothing about anybody else's. Whatever goes wrong, the
pod is allowed as it is: advice must never keep anybody from working.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from presage.control.admission import AdmissionMode, allowed, review
from presage.model.errors import UserError
from presage.server.routes.common import Parts

__all__ = ["router"]

log = logging.getLogger("presage.admission")

router = APIRouter(prefix="/admission/v1", tags=["kubernetes"])

LONGEST_S = 2.0
"""Nobody waits longer for advice; the webhook should give up a little later than that."""


class AdmissionAnswer(BaseModel):
    """An AdmissionReview with its response."""

    model_config = ConfigDict(extra="allow")
    kind: str


_REVIEW = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


@router.post("/pods/{mode}", response_model=AdmissionAnswer, openapi_extra=_REVIEW)
async def advise_pods(mode: AdmissionMode, request: Request, service: Parts) -> JSONResponse:
    """What a pod should ask for, as a JSON patch: `report` says so in an annotation, `fill` sets
    what is missing, `correct` also what is wrong. The pod is always allowed."""
    try:
        body = json.loads(await request.body())
        uid = body["request"]["uid"]
    except (ValueError, TypeError, KeyError):
        raise UserError("this is no AdmissionReview with a request and its uid") from None

    def work() -> dict[str, Any]:
        return review(body, mode, service.estimator.pod_needs)

    try:
        answer = await asyncio.wait_for(asyncio.to_thread(work), LONGEST_S)
    except Exception as error:  # whatever it is, it is no reason to refuse a pod
        log.warning("no advice for pod %s: %s", uid, error or type(error).__name__)
        answer = allowed(body)
    return JSONResponse(answer)
