"""How a request is refused, or fails: the status of each error, and what is said of it."""

from __future__ import annotations

import logging

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pod.errors import LogDamaged, NotSettled, PodBusy, PodError, PodExists, PodNotFound, StoreError, UsageProblem
from pod.manifest import ManifestError
from pod.service import schemas
from pod.service.api import Missing
from pod.service.care import AnotherPod, InUse
from pod.service.once import KeyInUse, KeyReused, OutcomeUnknown
from pod.service.shelf import NotOnTheShelf, Unfit
from worker.errors import ConfigError

logger = logging.getLogger("pod.service")

_STATUS: tuple[tuple[type[PodError], int, str], ...] = (
    (PodNotFound, 404, "no_such_pod"),
    (NotOnTheShelf, 404, "no_such_manifest"),
    (Missing, 404, "not_there"),
    (PodExists, 409, "name_taken"),
    (NotSettled, 409, "not_settled"),
    (PodBusy, 409, "in_use"),
    (InUse, 409, "in_use"),
    (AnotherPod, 409, "another_pod"),
    (KeyInUse, 409, "key_in_use"),
    (OutcomeUnknown, 409, "outcome_unknown"),
    (KeyReused, 422, "key_reused"),
    (Unfit, 422, "unfit_manifest"),
    (UsageProblem, 422, "not_possible"),
    (LogDamaged, 409, "damaged"),
    (StoreError, 503, "store"),
    (PodError, 409, "refused"),
)

EXPECTED = (ValidationError, PodError, ManifestError, ConfigError, OSError)
"""What `refused` has words for."""


def refused(request: Request, error: Exception) -> JSONResponse:
    """The answer to a request that ended in this error, one of `EXPECTED`."""
    match error:
        case ValidationError():
            return problem(422, "not_possible", schemas.complaint(error))
        case PodNotFound():
            name = request.path_params.get("name")
            said = f"there is no pod named {name!r}; GET /v1/pods lists those that there are" if name else str(error)
            return problem(404, "no_such_pod", said[:2_000])
        case PodError():
            status, kind = next((status, kind) for cls, status, kind in _STATUS if isinstance(error, cls))
            return problem(status, kind, str(error)[:2_000])
        case OSError():
            return _not_stored(request, error)
        case _:
            return problem(422, "not_possible", str(error)[:2_000])


def problem(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error as JSON: `error` for programs, `message` for people."""
    return JSONResponse({"error": kind, "message": message}, status, headers)


def _not_stored(request: Request, error: OSError) -> JSONResponse:
    """What the service keeps could not be read or written: no room, no right, too many files open."""
    logger.error("a request met a failure of the system: %s %s: %s", request.method, request.url.path, error)
    why = error.strerror or type(error).__name__
    return problem(
        503, "store", f"what the service keeps could not be read or written ({why}); its log says where; ask again then"
    )


async def http_error(request: Request, error: Exception) -> Response:
    """The answer where there is no such path, or nothing of the kind can be done there."""
    assert isinstance(error, HTTPException)
    where = "GET /openapi.json describes all that there is"
    kind, said = {
        404: ("no_such_path", f"there is nothing at {request.url.path[:200]}; {where}"),
        405: ("no_such_method", f"{request.method[:20]} is nothing that can be done there; {where}"),
    }.get(error.status_code, ("refused", str(error.detail)))
    return problem(error.status_code, kind, said, dict(error.headers or {}))


async def failed(request: Request, error: Exception) -> Response:
    """The answer to a request that the service failed on."""
    logger.error("a request failed: %s %s", request.method, request.url.path, exc_info=error)
    return problem(500, "internal", f"the service failed on this request ({type(error).__name__}); its log says where")
