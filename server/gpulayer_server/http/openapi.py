"""The document of the HTTP API, OpenAPI 3.1, made from the table of routes and the types that it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpulayer._version import __version__
from gpulayer.protocol.types import Problem
from gpulayer_server.http.base import Handler

BYTES = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"

_REF = "#/components/schemas/{name}"
_PATTERNS = {
    "sha256": r"([0-9a-f]{64})",
    "session": r"([^/]{1,200})",
    "token": r"([^/]{1,200})",
    "map": r"([A-Za-z0-9_-]{1,64}\.[0-9]{1,15})",
}
_ID = r"([A-Za-z0-9_-]{1,64})"
_SAMPLES = {"sha256": "0" * 64, "map": "x.1"}
_PLACES = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One of a query or a header."""

    name: str
    kind: Any  # its type
    text: str
    required: bool = False


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What one method of a path does."""

    method: str
    name: str  # operationId
    text: str
    body: Any = None  # the type of its JSON, or a media type
    answer: Any = None  # likewise; None: no body
    status: int = 200
    query: Sequence[Parameter] = ()
    headers: Sequence[Parameter] = ()  # of the request
    gives: Sequence[Parameter] = ()  # headers of the answer
    also: Mapping[int, str] = field(default_factory=dict[int, str])  # further answers, beside problems


@dataclass(frozen=True, kw_only=True)
class Route:
    """A path with its handler and what that does. `{job}` and the like stand for names and digests."""

    path: str
    handler: type[Handler]
    operations: Sequence[Operation]

    @property
    def pattern(self) -> str:
        """For tornado."""
        return _PLACES.sub(lambda place: _PATTERNS.get(place[1], _ID), self.path)

    @property
    def places(self) -> list[str]:
        """What stands in its braces."""
        return _PLACES.findall(self.path)

    @property
    def sample(self) -> str:
        """A path that it matches."""
        return _PLACES.sub(lambda place: _SAMPLES.get(place[1], "x"), self.path)


def document(routes: Sequence[Route], may: Callable[[str, str], Sequence[str]]) -> dict[str, Any]:
    """The document. `may` gives the roles that may use a method and a path."""
    kinds = [Problem]
    for operation in (each for route in routes for each in route.operations):
        kinds += [kind for kind in (operation.body, operation.answer) if kind is not None and not _is_media(kind)]
        kinds += [each.kind for each in (*operation.query, *operation.headers, *operation.gives)]
    distinct = list({repr(kind): kind for kind in kinds}.values())
    schemas, components = msgspec.json.schema_components(distinct, ref_template=_REF)
    schema_of = dict(zip(map(repr, distinct), schemas, strict=True))

    def schema(kind: Any) -> dict[str, Any]:
        return schema_of[repr(kind)]

    return {
        "openapi": "3.1.0",
        "info": {
            "title": "GPUlayer",
            "version": __version__,
            "description": "Jobs on all the machines you can reach. Errors are problem details (RFC 9457).",
        },
        "security": [{"token": []}],
        "paths": {route.path: _path(route, schema, may) for route in routes},
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "It was not done; the body says why and what to do.",
                    "content": {"application/problem+json": {"schema": schema(Problem)}},
                }
            },
        },
    }


def _is_media(kind: Any) -> bool:
    return isinstance(kind, str)


def _path(
    route: Route, schema: Callable[[Any], dict[str, Any]], may: Callable[[str, str], Sequence[str]]
) -> dict[str, Any]:
    item: dict[str, Any] = {}
    if route.places:
        item["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.places
        ]
    for operation in route.operations:
        item[operation.method.lower()] = _operation(operation, schema, may(operation.method, route.sample))
    return item


def _operation(operation: Operation, schema: Callable[[Any], dict[str, Any]], roles: Sequence[str]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.text,
        "x-roles": list(roles),
        "responses": {str(operation.status): _response(operation, schema)}
        | {str(status): {"description": text} for status, text in operation.also.items()}
        | {"default": {"$ref": "#/components/responses/Problem"}},
    }
    parameters = [
        {
            "name": each.name,
            "in": place,
            "description": each.text,
            "required": each.required,
            "schema": schema(each.kind),
        }
        for place, some in (("query", operation.query), ("header", operation.headers))
        for each in some
    ]
    if parameters:
        told["parameters"] = parameters
    if operation.body is not None:
        told["requestBody"] = {"required": True, "content": _content(operation.body, schema)}
    return told


def _response(operation: Operation, schema: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": operation.text}
    if operation.answer is not None:
        response["content"] = _content(operation.answer, schema)
    if operation.gives:
        response["headers"] = {
            each.name: {"description": each.text, "schema": schema(each.kind)} for each in operation.gives
        }
    return response


def _content(kind: Any, schema: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    if _is_media(kind):
        return {kind.partition(";")[0]: {}}
    return {"application/json": {"schema": schema(kind)}}
