"""An answer that is a sentence: what was wrong, and beside which field of the page it belongs."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from pellucid.errors import PellucidError

# What a field's limit is called where it was declared, and the sentence for a value beyond it.
LIMITS = {
    "ge": "too_low",
    "gt": "not_above",
    "le": "too_high",
    "multiple_of": "not_multiple",
    "max_length": "too_many_letters",
}
MOST = 500  # characters of a sentence: what came in is not sent back whole


class Refused(Exception):  # noqa: N818 (an answer, not a fault)
    """code: the sentence's name in the page's tables of strings, filled with `values`; message: the same in English.

    detail: what the library itself says, shown below the sentence.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        field: str | None = None,
        *,
        detail: str | None = None,
        **values: Any,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.field = status, code, message, field
        self.detail, self.values = detail, values


def refused_by(error: PellucidError, code: str, field: str, **values: Any) -> Refused:
    """What the library refuses, under a sentence of the page's own."""
    return Refused(422, code, str(error), field, detail=str(error), **values)


def answer(
    status: int, code: str, message: str, field: str | None = None, *, detail: str | None = None, **values: Any
) -> JSONResponse:
    # Half of a surrogate pair may come in; it cannot go out.
    body = {"code": code, "message": _clean(message), "field": _clean(field), "detail": _clean(detail)}
    body["values"] = {name: _clean(value) for name, value in values.items()}
    return JSONResponse(body, status, headers={"Retry-After": "1"} if status == 429 else None)


def _clean(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode()[:MOST] if isinstance(value, str) else value


def install(app: FastAPI) -> None:
    """Every error that is not a fault of ours becomes such an answer."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return answer(error.status, error.code, error.message, error.field, detail=error.detail, **error.values)

    @app.exception_handler(PellucidError)
    async def known(request: Request, error: PellucidError) -> JSONResponse:
        return answer(422, "model", str(error), "text", detail=str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        places = [str(place) for place in first["loc"] if place not in ("body", "query", "path")]
        field = places[0] if places else None
        said = f"{'.'.join(places) or 'the request'}: {first['msg']}"
        limits = first.get("ctx", {})
        code, limit = next(((code, limits[name]) for name, code in LIMITS.items() if name in limits), ("invalid", None))
        return answer(422, code, said, field, detail=said, limit=limit)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        response = answer(error.status_code, "http", str(error.detail))
        response.headers.update(error.headers or {})
        return response
