"""What a runner is started with, what it costs, and for how long it is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpulayer.protocol.calls import CallsSpec, FunctionSpec
from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CommandSpec, Device, JobSpec, Outcome, State
from gpulayer.source.blobs import Span
from gpulayer_worker.run.callsstart import Idle, Spending, calls_of, start_of
from tests.support.callsworld import Host, spec
from tests.support.fakerunner import record


def assign(calls: CallsSpec, **more: Any) -> Assign:
    return Assign(attempt="j-1", job="j", spec=JobSpec(calls=calls), **more)


def test_a_runner_is_told_all_that_it_needs(tmp_path: Path) -> None:
    calls = CallsSpec(
        function=FunctionSpec(name="M", qualname="M", kind="class", bundle="b" * 64, data=b"\0\1"),
        stateful=True,
        init=b"\1\2\3",
        init_blobs=("x", "gone"),
        memory_limit_bytes=10,
        env={"E": "1"},
    )
    host: Any = Host(tmp_path, calls, {})
    host.blobs["x"] = Span("/blob", 4, 5)
    host.devices = (Device(uuid="GPU-1", kind="cuda", index=0), Device(uuid="GPU-2", kind="cuda", index=1))
    start = start_of(host, assign(calls, devices=host.devices[:1]), tmp_path)
    config = dict(start.config)
    assert config["function"]["data"] == "AAE="
    assert (config["init"], config["init_blobs"]) == ("AQID", [("x", "/blob", 4, 5)])
    assert (config["bundle"], start.cwd) == (str(tmp_path / "workspace"), tmp_path / "workspace")
    assert (config["stateful"], config["isolate"], config["memory_limit_bytes"]) == (True, False, 10)
    assert start.env["E"] == "1"
    assert start.env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert start.env["GPULAYER_ATTEMPT"] == "j-1"


def test_without_files_there_is_no_bundle(tmp_path: Path) -> None:
    host: Any = Host(tmp_path, spec(), {})
    assert start_of(host, assign(spec()), tmp_path).config["bundle"] == ""


def test_only_an_attempt_for_calls_has_some() -> None:
    other = Assign(attempt="j-1", job="j", spec=JobSpec(command=CommandSpec(argv=("true",))))
    with pytest.raises(ValueError, match="attempt j-1 is for no calls"):
        calls_of(other)


def test_what_runners_used_is_added_up(tmp_path: Path) -> None:
    host: Any = Host(tmp_path, spec(), {})
    spending = Spending(host, assign(spec()))
    outcome = Outcome(state=State.SUCCEEDED)
    assert spending.added(outcome) == outcome
    for rss_bytes, cpu_s in ((5, 0.5), (9, 0.25), (None, None)):
        spending.begin("r")
        spending.end(record(0, peak_rss_bytes=rss_bytes, cpu_s=cpu_s))
    added = spending.added(outcome)
    assert (added.peak_rss_bytes, added.peak_device_bytes, added.cpu_s) == (9, None, 0.75)


def test_idle_for_long_enough_is_told_once() -> None:
    async def inside() -> list[str]:
        told: list[str] = []
        over = asyncio.Event()

        def tell() -> None:
            told.append("over")
            over.set()

        idle = Idle(0.01, tell)
        idle.begins()
        idle.ends()  # a call, at once
        idle.begins()
        idle.begins()
        await asyncio.wait_for(over.wait(), 60)
        idle.ends()
        idle.stop()
        return told

    assert asyncio.run(inside()) == ["over"]


def test_with_a_call_it_is_not_idle() -> None:
    async def inside() -> list[str]:
        told: list[str] = []
        idle = Idle(0.01, lambda: told.append("over"))
        idle.begins()
        idle.ends()
        other = asyncio.Event()
        Idle(0.05, other.set).begins()
        await asyncio.wait_for(other.wait(), 60)
        return told

    assert asyncio.run(inside()) == []
