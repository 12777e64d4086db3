"""The document of the API: whole, right, and true of real answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from gpulayer_server.http.app import routes
from gpulayer_server.http.base import Handler, Socket
from gpulayer_server.http.openapi import document
from gpulayer_server.http.routes import ROUTES, roles

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return document(ROUTES, roles)


def operations(made: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in made["paths"].items():
        for method, operation in item.items():
            if method.upper() in METHODS:
                yield path, method.upper(), operation


def methods_of(handler: type[Any]) -> set[str]:
    if issubclass(handler, Socket):
        return {"GET"}
    return {name for name in METHODS if getattr(handler, name.lower()) is not getattr(Handler, name.lower())}


def test_every_route_and_method_is_in_it_and_no_other(made: dict[str, Any]) -> None:
    served = {(pattern, method) for pattern, handler in routes() for method in methods_of(handler)}
    told = {(route.pattern, each.method) for route in ROUTES for each in route.operations}
    assert told == served
    assert {(path, method) for path, method, _ in operations(made)} == {
        (route.path, each.method) for route in ROUTES for each in route.operations
    }


def test_each_pattern_matches_its_sample_and_none_before_it_does() -> None:
    for number, route in enumerate(ROUTES):
        assert re.fullmatch(route.pattern, route.sample)
        assert [each.path for each in ROUTES[:number] if re.fullmatch(each.pattern, route.sample)] == []


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_it_is_well_formed(made: dict[str, Any]) -> None:
    assert made["openapi"].startswith("3.1.")
    assert set(made["info"]) >= {"title", "version"}
    names = [operation["operationId"] for _, _, operation in operations(made)]
    assert len(set(names)) == len(names)
    for path, method, operation in operations(made):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert any(status[0] in "12" for status in operation["responses"]), where
        assert all(re.fullmatch(r"[1-5]\d\d|default", status) for status in operation["responses"]), where
        given = [*made["paths"][path].get("parameters", []), *operation.get("parameters", [])]
        assert {each["name"] for each in given if each["in"] == "path"} == set(re.findall(r"\{(\w+)\}", path)), where
        for each in given:
            assert each["in"] in ("path", "query", "header"), where
            jsonschema.Draft202012Validator.check_schema(each["schema"])
        for response in operation["responses"].values():
            assert "description" in response or "$ref" in response, where
    for schema in made["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for reference in references(made):
        found: Any = made
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_each_operation_says_who_may(made: dict[str, Any]) -> None:
    for path, method, operation in operations(made):
        assert operation["x-roles"], f"{method} {path}"
    assert made["paths"]["/v1/join"]["post"]["x-roles"] == ["join"]
    assert "submitter" in made["paths"]["/v1/jobs"]["post"]["x-roles"]
    assert "reader" not in made["paths"]["/v1/jobs"]["post"]["x-roles"]


def test_real_answers_are_as_it_says(plane: Any, worker: Any) -> None:
    told = plane.request("GET", "/v1/openapi.json").json()

    def check(method: str, path: str, real: str, status: int = 200, **more: Any) -> Any:
        answer = plane.request(method, real, **more)
        assert answer.status_code == status, answer.text
        operation = told["paths"][path][method.lower()]
        response = operation["responses"].get(str(status), told["components"]["responses"]["Problem"])
        kind = answer.headers["content-type"].partition(";")[0]
        schema = {**response["content"][kind]["schema"], "components": told["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())
        return answer.json()

    spec = {"command": {"argv": ["true"]}, "name": "n", "labels": {"a": "b"}}
    job = check("POST", "/v1/jobs", "/v1/jobs", 201, json={"key": "k", "spec": spec})
    check("POST", "/v1/jobs/batch", "/v1/jobs/batch", 201, json={"jobs": [{"key": "l", "spec": spec}]})
    worker.assigned()
    assert check("GET", "/v1/jobs", "/v1/jobs")
    check("GET", "/v1/jobs/{job}", f"/v1/jobs/{job['id']}")
    assert check("GET", "/v1/jobs/{job}/tasks", f"/v1/jobs/{job['id']}/tasks")
    assert check("GET", "/v1/jobs/{job}/attempts", f"/v1/jobs/{job['id']}/attempts")
    check("GET", "/v1/jobs/{job}/outputs", f"/v1/jobs/{job['id']}/outputs")
    check("POST", "/v1/jobs/states", "/v1/jobs/states", json={"jobs": [job["id"]]})
    check("POST", "/v1/jobs/{job}/cancel", f"/v1/jobs/{job['id']}/cancel")
    check("GET", "/v1/jobs/{job}", "/v1/jobs/j-none", 404)
    check("POST", "/v1/jobs", "/v1/jobs", 400, json={"key": 1})
    assert check("GET", "/v1/workers", "/v1/workers")
    check("GET", "/v1/health", "/v1/health")
    check("GET", "/v1/sessions", "/v1/sessions")
    check("POST", "/v1/tokens", "/v1/tokens", 201, json={"role": "join", "name": "x"})
    assert check("GET", "/v1/tokens", "/v1/tokens")
    check("GET", "/v1/openapi.json", "/v1/openapi.json")


def test_a_request_as_it_says_is_taken(plane: Any, made: dict[str, Any]) -> None:
    body = {"key": "k", "spec": {"command": {"argv": ["true"], "env": {"A": "1"}}, "array": [[0, 2]]}}
    schema = {"$ref": "#/components/schemas/SubmitBody", "components": made["components"]}
    jsonschema.Draft202012Validator(schema).validate(body)
    assert plane.request("POST", "/v1/jobs", json=body).status_code == 201
    wrong = {"key": "k", "spec": {"retries": "three"}}
    assert not jsonschema.Draft202012Validator(schema).is_valid(wrong)
    assert plane.request("POST", "/v1/jobs", json=wrong).status_code == 400
