"""What a cell made, on its way to the control plane's blobs."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CellSpec, JobSpec, Outcome, State
from gpulayer.source import FileEntry, Manifest, SourceChanged
from gpulayer.source.blobs import Span
from gpulayer_worker import delivery
from gpulayer_worker.delivery import DeliveryError, NobodyThere, Parcel, Undeliverable, deliver
from gpulayer_worker.layout import Layout
from gpulayer_worker.run import results
from gpulayer_worker.run.request import metadata
from gpulayer_worker.run.results import Results, failed
from tests.support.blobhost import BlobHost, digest, problem

DONE = Outcome(state=State.SUCCEEDED)


def quiet(line: str) -> None:
    """Nobody looks."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> BlobHost:
    return BlobHost().serve(monkeypatch, "gpulayer_worker.delivery")


def parcel(folder: Path, *files: bytes, values: bytes = b"") -> Parcel:
    paths: dict[str, str] = {}
    sizes: dict[str, int] = {}
    for number, data in enumerate((values, *files) if values else files):
        path = folder / f"f{number}"
        path.write_bytes(data)
        paths[digest(data)], sizes[digest(data)] = str(path), len(data)
    manifest = None
    if files:
        entries = {
            d: FileEntry(path=Path(paths[d]).name, mode=0o644, size=sizes[d], sha256=d) for d in map(digest, files)
        }
        manifest = Manifest(entries.values())
    return Parcel(paths=paths, sizes=sizes, values=digest(values) if values else "", manifest=manifest)


def send(host: BlobHost, what: Parcel, tell: Any = quiet, stop: threading.Event | None = None) -> None:
    deliver(what, lambda: host.tie.endpoint, tell, stop or threading.Event())


# ---------------------------------------------------------------- one try


def test_values_and_files_arrive_and_the_manifest_last(host: BlobHost, tmp_path: Path) -> None:
    what = parcel(tmp_path, b"one", b"two", values=b"values")
    send(host, what)
    assert what.manifest is not None
    assert set(host.blobs.values()) == {b"one", b"two", b"values", what.manifest.to_bytes()}
    assert list(host.blobs)[-1] == what.manifest.digest


def test_what_is_there_is_not_sent_again(host: BlobHost, tmp_path: Path) -> None:
    what = parcel(tmp_path, b"one", values=b"values")
    send(host, what)
    host.asked.clear()
    send(host, what)
    assert [asked.split()[0] + asked[-8:] for asked in host.asked] == [f"HEAD{what.values[-8:]}", "POST/bundles"]


def test_much_travels_in_parts(host: BlobHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "BATCH_BYTES", 1000)
    monkeypatch.setattr(delivery, "_TOLD_EVERY_S", 0.0)
    told: list[str] = []
    send(host, parcel(tmp_path, *(bytes([number]) * 600 for number in range(5)), b"x" * 3000), told.append)
    assert host.asked.count("POST /v1/blobs") == 6
    assert told[-1] == "sending results back · 0 of 0 MB"
    assert len(host.blobs) == 7


def test_a_file_that_is_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "BLOB_BYTES", 1000)
    with pytest.raises(Undeliverable, match=r"^f1 has 0.0 GB, and at most 0.0 GB come back$"):
        parcel(tmp_path, b"small", b"x" * 2000)


def test_a_file_that_changed_is_told(host: BlobHost, tmp_path: Path) -> None:
    what = parcel(tmp_path, b"one")
    (tmp_path / "f0").write_bytes(b"eno")
    with pytest.raises(SourceChanged, match=r"f0 changed while it was sent"):
        send(host, what)
    assert host.blobs == {}


@pytest.mark.parametrize(
    ("answer", "kind", "line"),
    [
        (httpx.ConnectError("refused"), NobodyThere, "refused"),
        (httpx.ReadTimeout(""), NobodyThere, "ReadTimeout"),
        (httpx.Response(502), NobodyThere, "the control plane answered 502 Bad Gateway"),
        (problem(507, "disk", "it is full"), DeliveryError, "disk: it is full"),
        (problem(401, "unauthorized"), DeliveryError, "unauthorized"),
        (problem(413, "too_large"), Undeliverable, "too_large"),
        (httpx.Response(404, content=b"<html>"), Undeliverable, "the control plane answered 404 Not Found"),
    ],
)
def test_what_can_go_wrong_has_a_kind(
    host: BlobHost, tmp_path: Path, answer: Any, kind: type[DeliveryError], line: str
) -> None:
    host.break_next = [answer]
    with pytest.raises(DeliveryError, match=line) as caught:
        send(host, parcel(tmp_path, b"one"))
    assert type(caught.value) is kind


def test_without_an_endpoint_nobody_is_there(tmp_path: Path) -> None:
    def nowhere() -> Any:
        raise OSError("no endpoint.json")

    with pytest.raises(NobodyThere, match=r"no endpoint.json"):
        deliver(parcel(tmp_path, b"one"), nowhere, quiet, threading.Event())


def test_once_stopped_it_sends_no_more(host: BlobHost, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    send(host, parcel(tmp_path, b"x" * 1000), stop=stop)
    assert host.blobs == {}


# ---------------------------------------------------------------- until it is there


class Attempt:
    """One attempt's results, with an agent that is played by hand."""

    def __init__(self, host: BlobHost, folder: Path, **cell: Any) -> None:
        self.layout = Layout(folder)
        self.folder = self.layout.attempt("a-1")
        self.folder.mkdir(parents=True)
        self.workspace = folder / "work"
        self.workspace.mkdir()
        self.told: list[str] = []
        self.host = host
        self._cell = CellSpec(code="", **cell)

    def made(self, tell: Callable[[str], None] | None = None) -> Results:
        services: Any = SimpleNamespace(layout=self.layout, endpoint=lambda: self.host.tie.endpoint)
        return Results(services, self._cell.output_globs, self.folder, tell or self.told.append)

    def leave_values(self, data: bytes) -> dict[str, Any]:
        (self.folder / "values").write_bytes(data)
        return {"values": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}}


@pytest.fixture
def attempt(host: BlobHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr(results, "_AGAIN_S", 0.001)
    monkeypatch.setattr(results, "_AGAIN_AT_MOST_S", 0.002)
    return Attempt(host, tmp_path, outputs=("c",), output_globs=("*.csv",))


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_only_what_the_cell_made_goes_back(attempt: Attempt) -> None:
    async def go() -> Outcome:
        (attempt.workspace / "old.csv").write_bytes(b"old")
        made = attempt.made()
        await made.remember(attempt.workspace)
        (attempt.workspace / "new.csv").write_bytes(b"new")
        reply = attempt.leave_values(b"values")
        again = attempt.made()  # a new agent's
        return await again.deliver(again.settled(DONE), reply, attempt.workspace)

    outcome = run(go())
    assert (outcome.state, outcome.values, outcome.values_bytes) == (State.SUCCEEDED, digest(b"values"), 6)
    manifest = Manifest.from_bytes(attempt.host.blobs[outcome.files])
    assert [entry.path for entry in manifest.files] == ["new.csv"]
    assert attempt.told[0] == "sending results back"


def test_nothing_made_is_nothing_sent(attempt: Attempt) -> None:
    async def go() -> Outcome:
        return await attempt.made().deliver(DONE, {}, attempt.workspace)

    assert run(go()) == replace(DONE, unmatched=("*.csv",))
    assert attempt.host.asked == []


def test_while_nobody_is_there_it_is_tried_for_as_long_as_it_takes(attempt: Attempt) -> None:
    attempt.host.break_next = [httpx.ConnectError("refused")] * 90

    async def go() -> Outcome:
        return await attempt.made().deliver(DONE, attempt.leave_values(b"v"), attempt.workspace)

    assert run(go()).values == digest(b"v")
    assert attempt.told.count("sending results back: refused; trying again") == 90


def test_one_who_never_takes_it_makes_the_job_fail_and_the_programs_end_is_kept(attempt: Attempt) -> None:
    attempt.host.break_next = [problem(507, "disk", "full")] * 60
    ended = Outcome(state=State.FAILED, exit_code=3, error="ValueError: x", peak_rss_bytes=5)

    async def go() -> Outcome:
        return await attempt.made().deliver(ended, attempt.leave_values(b"v"), attempt.workspace)

    outcome = run(go())
    assert (outcome.state, outcome.exit_code, outcome.error) == (State.FAILED, 3, "ValueError: x")
    assert outcome.problem == "upload failed: disk: full"
    assert outcome.peak_rss_bytes == 5
    assert outcome.values == ""


@pytest.mark.parametrize(
    ("outcome", "state", "text"),
    [
        (DONE, State.FAILED, "upload failed: why"),
        (Outcome(state=State.CANCELLED), State.CANCELLED, "upload failed: why"),
        (Outcome(state=State.FAILED, problem="timed out"), State.FAILED, "timed out; upload failed: why"),
    ],
)
def test_a_failed_upload_stands_beside_what_else_went_wrong(outcome: Outcome, state: State, text: str) -> None:
    assert (failed(outcome, "why").state, failed(outcome, "why").problem) == (state, text)


def test_values_that_are_gone_and_files_that_go_on_changing_are_told(attempt: Attempt) -> None:
    async def go() -> Outcome:
        reply = attempt.leave_values(b"v")
        (attempt.folder / "values").unlink()
        return await attempt.made().deliver(DONE, reply, attempt.workspace)

    assert run(go()).problem == "upload failed: values is not what the cell left"


def stopped(attempt: Attempt, program: Outcome, *wishes: tuple[str, str], before: tuple[str, str] | None) -> Outcome:
    """What becomes of an attempt with these wishes while nobody is there to send its results to."""
    asked = list(wishes)

    async def go() -> Outcome:
        def tell(text: str) -> None:
            if text.endswith("trying again") and asked:
                made.stop(*asked.pop(0))

        made = attempt.made(tell)
        if before:
            made.stop(*before)
        return await made.deliver(made.settled(program), attempt.leave_values(b"v"), attempt.workspace)

    attempt.host.break_next = [httpx.ConnectError("refused")] * 20
    return run(go())


CANCEL, KILL = ("cancel", "it did not stop"), ("kill", "its session was ended")
CANCELLED = Outcome(state=State.CANCELLED, error="KeyboardInterrupt")


def test_a_wish_to_end_it_ends_it(attempt: Attempt) -> None:
    outcome = stopped(attempt, DONE, CANCEL, before=None)
    assert (outcome.state, outcome.problem) == (State.CANCELLED, "cancelled while its results were sent back")
    assert attempt.host.blobs == {}


def test_what_ends_its_session_ends_it(attempt: Attempt) -> None:
    outcome = stopped(attempt, DONE, KILL, before=None)
    assert (outcome.state, outcome.problem) == (State.FAILED, "its session was ended")
    assert attempt.host.blobs == {}


def test_a_program_that_was_killed_sends_nothing(attempt: Attempt) -> None:
    assert stopped(attempt, Outcome(state=State.FAILED, problem="x"), before=KILL).problem == "x"
    assert attempt.host.asked == []


@pytest.mark.parametrize("before", [CANCEL, None], ids=["the agent that was asked", "the next one"])
def test_a_program_that_was_cancelled_sends_what_it_left(attempt: Attempt, before: tuple[str, str] | None) -> None:
    outcome = stopped(attempt, CANCELLED, CANCEL, CANCEL, before=before)
    assert outcome.state is State.CANCELLED
    assert outcome.values == digest(b"v")


def test_how_the_program_ended_is_what_the_first_agent_saw(attempt: Attempt) -> None:
    async def go() -> Outcome:
        cancelled = Outcome(state=State.CANCELLED, error="KeyboardInterrupt", peak_rss_bytes=7)
        assert attempt.made().settled(cancelled) == cancelled
        return attempt.made().settled(Outcome(state=State.FAILED))

    assert run(go()) == Outcome(state=State.CANCELLED, error="KeyboardInterrupt", peak_rss_bytes=7)


def test_the_request_names_values_only_where_they_are_asked_for(tmp_path: Path) -> None:
    services: Any = SimpleNamespace(layout=Layout(tmp_path), devices=(), reserve_bytes=0)

    def asked(cell: CellSpec, inputs: Span | None) -> dict[str, object]:
        assign = Assign(attempt="a-1", job="j", spec=JobSpec(cell=cell))
        return metadata(services, assign, tmp_path, inputs)

    assert not {"inputs", "outputs"} & set(asked(CellSpec(code=""), None))
    both = asked(CellSpec(code="", outputs=("c",)), Span("/blob", 3, 4))
    assert both["inputs"] == {"path": "/blob", "offset": 3, "size": 4}
    assert both["outputs"] == {"names": ("c",), "path": str(tmp_path / "attempts" / "a-1" / "values")}
