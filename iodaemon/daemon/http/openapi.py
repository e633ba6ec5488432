"""``GET /v1/openapi.json``: the API as OpenAPI 3.1 says it, made from the declared routes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

import iodaemon
from iodaemon.api.model import ErrorAnswer
from iodaemon.daemon.http.answer import LINES
from iodaemon.daemon.http.route import KEYS, Route

_TEXT: Final = (
    "JSON over the daemon's unix socket; the caller is whom the kernel says (SO_PEERCRED). "
    "docs/api.md explains each request and each key."
)
_ERRORS: Final = {
    "400": "refused: the message says what to do",
    "403": "not_permitted",
    "404": "not_found",
    "409": "conflict: the job's state does not allow it",
    "410": "gone: not all events after that one are in the journal",
    "413": "the body is too large",
    "503": "unavailable: for example, the journal's disk is full",
}


def answers_of(route: Route) -> tuple[Any, ...]:
    """The types of the JSON that a route answers with."""
    if isinstance(route.answer, str):
        return ()
    return route.answer if isinstance(route.answer, tuple) else (route.answer,)


def describe(routes: Sequence[Route]) -> bytes:
    """The document, as JSON."""
    bodies = [route.body for route in routes if route.body is not None]
    types = [ErrorAnswer, *bodies, *(each for route in routes for each in answers_of(route))]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "iodaemon", "version": iodaemon.__version__, "description": _TEXT},
            "servers": [{"url": "http://localhost"}],
            "paths": paths,
            "components": {"schemas": components},
        }
    )


def _operation(route: Route, schema_of: dict[int, dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.text,
        "operationId": route.method.lower() + re.sub(r"[/.{}]+", "_", route.path),
        "responses": {
            **{str(status): _answer(route, schema_of) for status in route.statuses},
            **_refusals(schema_of),
        },
    }
    parameters = [*_path_keys(route.path), *map(_query_key, route.query)]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        body = {"application/json": {"schema": schema_of[id(route.body)]}}
        operation["requestBody"] = {"content": body, "required": _is_required(route.body)}
    return operation


def _is_required(body: Any) -> bool:
    """Whether an empty body means nothing."""
    try:
        msgspec.json.decode(b"{}", type=body)
    except msgspec.ValidationError:
        return True
    return False


def _answer(route: Route, schema_of: dict[int, dict[str, Any]]) -> dict[str, Any]:
    if isinstance(route.answer, str):
        schema: dict[str, Any] = {"type": "string"} if route.answer == LINES else {}
        return {"description": route.text, "content": {route.answer: {"schema": schema}}}
    several = [schema_of[id(each)] for each in answers_of(route)]
    schema = several[0] if len(several) == 1 else {"oneOf": several}
    content = {"application/json": {"schema": schema}}
    return {"description": route.text, "content": content}


def _refusals(schema_of: dict[int, dict[str, Any]]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema_of[id(ErrorAnswer)]}}
    return {status: {"description": text, "content": content} for status, text in _ERRORS.items()}


def _path_keys(path: str) -> Iterable[dict[str, Any]]:
    if "{id}" in path:
        schema = {"type": "integer", "minimum": 0}
        yield {"name": "id", "in": "path", "required": True, "schema": schema}


def _query_key(name: str) -> dict[str, Any]:
    key = KEYS[name]
    schema: dict[str, Any] = {"type": key.kind}
    if key.choices:
        schema = {"type": "string", "enum": list(key.choices)}
    elif key.kind == "integer":
        schema["minimum"] = 0
    if key.may_repeat:
        schema = {"type": "array", "items": schema}
    return {"name": name, "in": "query", "description": key.text, "schema": schema}
