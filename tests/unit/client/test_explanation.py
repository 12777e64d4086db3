"""`gl.explain`, `Client.explain` and its awaited twin."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import gpulayer as gl
from gpulayer.client import asks
from gpulayer.client.command import CommandRefused
from gpulayer.client.explanation import settled, starting
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import Explanation, Placement, Reason, Requirements
from tests.support.answering import Answer, Answering, answering

REJECTED = Explanation(
    placement=Placement.REJECTED,
    reasons=(Reason(worker="box", code="device_kind", text="no cuda device, it has mps", wanted=1, found=0),),
    nearest="add a machine",
)
TABLE = "scheduling: no eligible worker\n  box  no cuda device, it has mps\nnearest: add a machine"


def test_what_is_asked_and_how_the_answer_is_read() -> None:
    ask = asks.explain(Requirements(accelerator="cuda", frameworks=("torch>=2.4",)), wait_for_worker=True)
    assert (ask.method, ask.path) == ("POST", "/v1/explain")
    assert msgspec.json.decode(ask.content or b"") == {
        "requirements": {"accelerator": "cuda", "frameworks": ["torch>=2.4"]},
        "wait_for_worker": True,
    }
    explanation = ask.answer(200, msgspec.json.encode(REJECTED))
    assert isinstance(explanation, gl.Explanation)
    assert (repr(explanation), str(explanation), bool(explanation)) == (TABLE, TABLE, False)
    assert (explanation.reasons[0].wanted, explanation.nearest) == (1, "add a machine")


@pytest.mark.parametrize("placement", [Placement.PLACED, Placement.WAITING])
def test_one_that_would_be_taken_is_true(placement: Placement) -> None:
    assert gl.Explanation(placement=placement)


@pytest.fixture
def plane(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    """This user's control plane, which rejects everything."""
    with answering(lambda asked: Answer(body=msgspec.json.encode(REJECTED))) as plane:
        here = Endpoint(url=plane.url, token="secret", pid=1, version="0")
        monkeypatch.setattr("gpulayer.client.finding.find_or_start", lambda data: here)
        yield plane


def bodies(plane: Answering) -> list[Any]:
    return [asked.body for asked in plane.asked if asked.line == "POST /v1/explain"]


WISH = {"requirements": {"accelerator": "cuda", "min_vram_bytes": 40_000_000_000}, "wait_for_worker": True}


def test_from_a_program(plane: Answering) -> None:
    assert str(gl.explain(accelerator="cuda", min_vram="40GB", wait_for_worker=True)) == TABLE
    with gl.Client() as client:
        assert client.explain(accelerator="cuda", min_vram=40_000_000_000, wait_for_worker=True) == gl.explain()
    nothing = {"requirements": {}, "wait_for_worker": False}
    assert bodies(plane) == [WISH, WISH, nothing]


STARTING = Explanation(
    placement=Placement.WAITING,
    reasons=(Reason(worker="", code="starting", text="a worker is being started on this machine", temporary=True),),
)


def test_while_this_machines_worker_is_on_its_way_it_is_asked_again() -> None:
    answers = [STARTING, STARTING, REJECTED]
    pauses: list[float] = []
    assert settled(lambda: answers.pop(0), pauses.append) is REJECTED
    assert len(pauses) == 2
    assert not starting(Explanation(placement=Placement.PLACED, eligible=("box",)))


def test_so_does_every_client() -> None:
    answers = [STARTING, REJECTED, STARTING, REJECTED]
    with answering(lambda asked: Answer(body=msgspec.json.encode(answers.pop(0)))) as plane:
        with gl.Client(plane.url, "secret") as client:
            assert str(client.explain()) == TABLE

        async def ask() -> gl.Explanation:
            async with gl.AsyncClient(plane.url, "secret") as client:
                return await client.explain()

        assert str(asyncio.run(ask())) == TABLE
    assert not answers


def test_awaited(plane: Answering) -> None:
    async def ask() -> gl.Explanation:
        async with gl.AsyncClient() as client:
            return await client.explain(accelerator="cuda", min_vram="40GB", wait_for_worker=True)

    assert repr(asyncio.run(ask())) == TABLE
    assert bodies(plane) == [WISH]


def test_what_can_not_be_asked_is_said_before_anybody_is_asked(plane: Answering) -> None:
    with pytest.raises(CommandRefused, match=r"^min_vram: 'lots' is no size; write it like 40GB$"):
        gl.explain(accelerator="cuda", min_vram="lots")
    slip = r"^explain\(\) got an unexpected keyword argument 'acelerator'; did you mean accelerator\?$"
    with pytest.raises(TypeError, match=slip):
        gl.explain(acelerator="cuda")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^submit\(\) got an unexpected keyword argument 'sauce'$"):
        gl.Client().submit("true", sauce=".")  # type: ignore[call-arg]
    assert plane.asked == []
