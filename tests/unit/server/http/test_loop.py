"""The loop's lateness, asked for and told."""

from __future__ import annotations

import threading
from typing import Any

import pytest


def test_a_probe_sees_what_holds_the_loop(plane: Any) -> None:
    assert plane.request("POST", "/v1/loop").status_code == 204
    held = threading.Event()
    plane.do(lambda: held.wait(0.3))  # nobody sets it: the loop is held for that long
    lag = plane.request("DELETE", "/v1/loop").json()
    assert lag["max_ms"] >= 250
    assert lag["samples"] > 0
    assert lag["p50_ms"] <= lag["p99_ms"] <= lag["max_ms"]


def test_without_a_probe_there_is_nothing_to_tell(plane: Any) -> None:
    answer = plane.request("DELETE", "/v1/loop")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_probe")


@pytest.mark.parametrize("times", [2, 3])
def test_a_second_begin_measures_anew(plane: Any, times: int) -> None:
    for _ in range(times):
        assert plane.request("POST", "/v1/loop").status_code == 204
    assert plane.request("DELETE", "/v1/loop").status_code == 200
    assert plane.request("DELETE", "/v1/loop").status_code == 404
