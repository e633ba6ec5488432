"""``GET /v1/openapi.json``: the API as OpenAPI 3.1 says it, made from the declared routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

import iodaemon
from iodaemon.api.model import ErrorAnswer
from iodaemon.daemon.http.answer import LINES
from iodaemon.daemon.http.refusal import STATUSES
from iodaemon.daemon.http.route import HEADERS, KEYS, Key, Route

_TEXT: Final = (
    "JSON over the daemon's unix socket; the caller is whom the kernel says (SO_PEERCRED). "
    "docs/api.md explains each request and each key."
)
_JOB_ID: Final = {
    "name": "id",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 0},
}


def describe(routes: Sequence[Route]) -> bytes:
    bodies = [route.body for route in routes if route.body is not None]
    types = [ErrorAnswer, *bodies, *(each for route in routes for each in route.answers)]
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
    refusal = {"application/json": {"schema": schema_of[id(ErrorAnswer)]}}
    operation: dict[str, Any] = {
        "summary": route.text,
        "operationId": route.method.lower() + re.sub(r"[/.{}]+", "_", route.path),
        "responses": {
            **{str(status): _answer(route, schema_of) for status in route.statuses},
            **{str(s): {"description": t, "content": refusal} for s, t in STATUSES.items()},
        },
    }
    parameters = [
        *([_JOB_ID] if "{id}" in route.path else []),
        *(_parameter("query", name, KEYS[name]) for name in route.query),
        *(_parameter("header", name, HEADERS[name]) for name in route.headers),
    ]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        body: dict[str, Any] = {"application/json": {"schema": schema_of[id(route.body)]}}
        if route.reads_body:
            body[LINES] = {"schema": {"type": "string"}}
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
    several = [schema_of[id(each)] for each in route.answers]
    if not several:
        is_text = route.answer == LINES or route.answer.startswith("text/")
        several = [{"type": "string"} if is_text else {}]
    media = route.answer if isinstance(route.answer, str) else "application/json"
    schema = several[0] if len(several) == 1 else {"oneOf": several}
    return {"description": route.text, "content": {media: {"schema": schema}}}


def _parameter(place: str, name: str, key: Key) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": key.kind}
    if key.choices:
        schema = {"type": "string", "enum": list(key.choices)}
    elif key.kind == "integer":
        schema["minimum"] = 0
    if key.may_repeat:
        schema = {"type": "array", "items": schema}
    return {"name": name, "in": place, "description": key.text, "schema": schema}
