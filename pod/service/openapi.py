"""The OpenAPI document, made from the operations: what is not in it is not answered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel

from pod.names import NAME_PATTERN
from pod.service.operations import EVENTS, Operation
from pod.service.schemas import Problem

_REFUSALS = {
    400: "The request is no proper one.",
    401: "No token, or one that is not known.",
    403: "The token may not do this, or the request came under a foreign name or from a foreign page.",
    404: "What the path names is not there.",
    408: "The body came too slowly.",
    409: "It can't be done as things stand.",
    413: "The body is too large.",
    415: "The body is not marked as JSON.",
    422: "An argument is none that it can be.",
    429: "Too many readers: come back in a moment.",
    503: "The service comes to its end, or a store does not answer.",
}
_WRITING = (400, 408, 409, 413, 415, 422)


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The whole document."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    _model(Problem, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pod-runtime",
            "version": _version(),
            "description": "Pods: long-running agents, through HTTP.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    refusals = {401, 403, 503, *operation.refusals, *(_WRITING if operation.writes else ())}
    answers: dict[str, dict[str, Any]] = {
        str(status): {
            "description": (model.__doc__ or "").strip(),
            "content": {operation.media: {"schema": _model(model, schemas)}},
        }
        for status, model in operation.answers.items()
    }
    if operation.media != "application/json":
        answers["200"] = {
            "description": operation.says,
            "content": {operation.media: {"schema": {"type": "string", "format": "binary"}}},
        }
    if operation.name == EVENTS:
        content: dict[str, Any] = answers["200"]["content"]
        content["text/event-stream"] = {"schema": {"type": "string"}}
    for status in sorted(refusals):
        answers[str(status)] = {
            "description": _REFUSALS[status],
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    made: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.says,
        "description": f"Role: `{operation.role}`.",
        "parameters": [*_path_parameters(operation.path), *_query(operation, schemas), *_headers(operation)],
        "responses": answers,
    }
    if operation.body is not None:
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _model(operation.body, schemas)}},
        }
    return made


def _path_parameters(path: str) -> list[dict[str, Any]]:
    patterns = {
        "name": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
        "id": {"type": "string", "minLength": 1},
        "seq": {"type": "integer", "minimum": 1, "maximum": 10**15},
    }
    return [
        {"name": name, "in": "path", "required": True, "schema": patterns[name]}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _query(operation: Operation, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    if operation.query is None:
        return []
    schema = operation.query.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    return [
        {"name": name, "in": "query", "required": False, "schema": value}
        for name, value in schema["properties"].items()
    ]


def _headers(operation: Operation) -> list[dict[str, Any]]:
    if operation.name == EVENTS:
        return [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "pattern": "^[0-9]{1,15}$"},
            }
        ]
    if not operation.writes:
        return []
    return [
        {
            "name": "Idempotency-Key", "in": "header", "required": False,
            "description": "Asked again with it, the same request gets the same answer and is not done again.",
            "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"},
        }
    ]  # fmt: skip


def _model(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _version() -> str:
    try:
        return version("pod-runtime")
    except PackageNotFoundError:
        return "0"
