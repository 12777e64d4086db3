"""docs/rest.md tells of every route, and of who may use it."""

from __future__ import annotations

import re
from pathlib import Path

from gpulayer_server.http.routes import ROUTES, roles

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "rest.md").read_text(encoding="utf-8")


def test_every_route_is_told_of_and_no_other() -> None:
    told = re.findall(r"^### ([A-Z]+ /v1/\S+)$", TEXT, re.MULTILINE)
    assert sorted(told) == sorted(f"{each.method} {route.path}" for route in ROUTES for each in route.operations)


def test_the_roles_are_those_of_the_table() -> None:
    for part in re.split(r"^##+ ", TEXT, flags=re.MULTILINE):
        head = re.match(r"([A-Z]+) (/v1/\S+)\n", part)
        if head is None:
            continue
        route = next(route for route in ROUTES if route.path == head[2])
        found = re.search(r"Roles:\s([a-z, \n]+)\.", part)
        assert found is not None, head[0]
        assert re.split(r",\s+", found[1]) == roles(head[1], route.sample), head[0]
