"""What is removed after a while, and what never is."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpulayer.protocol.calls import OK, CallRun, CallsSpec, FunctionSpec
from gpulayer.protocol.types import CellSpec, CommandSpec, JobSpec, Outcome, State
from gpulayer.source import FileEntry, Manifest, blobs
from gpulayer.source.blobs import Blobs
from gpulayer.source.partial import Partials
from gpulayer_server import retention as module
from gpulayer_server.core.events import ArgsRow, ResultsRow
from gpulayer_server.core.state import Attempt, Job, Task
from gpulayer_server.retention import Retention
from gpulayer_server.store.database import Store
from gpulayer_server.store.maps import dropped
from gpulayer_server.store.rows import encoded
from gpulayer_server.store.streams import Streams

DAY_S = 86_400.0


class Folder:
    """A data folder of which all is old."""

    def __init__(self, path: Path):
        self.path = path
        self.blobs = Blobs(path / "blobs")
        self.partials = Partials(self.blobs)
        self.store = Store(path / "store.db")
        self.streams = Streams(path / "streams")

    def put(self, data: bytes, age_s: float = DAY_S) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs.put(digest, [data])
        self.aged(digest, age_s)
        return digest

    def aged(self, digest: str, age_s: float) -> None:
        span = self.blobs.find(digest)
        assert span is not None
        then = time.time() - age_s
        os.utime(span.path, (then, then))

    def bundle(self, *contents: bytes, age_s: float = DAY_S) -> list[str]:
        """A manifest and the blobs that it names; their digests, the manifest's first."""
        digests = [self.put(data, age_s) for data in contents]
        entries = [
            FileEntry(path=f"f{n}", mode=0o644, size=len(data), sha256=digest)
            for n, (data, digest) in enumerate(zip(contents, digests, strict=True))
        ]
        return [self.put(Manifest(files=tuple(entries)).to_bytes(), age_s), *digests]

    def job(self, n: int, spec: JobSpec, outcome: Outcome | None = None) -> str:
        """A job that is kept; its attempt."""
        job = Job(id=f"j-{n}", n=n, owner="me", key=f"k{n}", payload_hash="", spec=spec, submitted_at=0.0)
        task = Task(id=f"t-{n}", job=job.id, n=n, index=0, state=State.SUCCEEDED, outcome=outcome, attempts=1)
        place = {"task": task.id, "n": n, "index": 0, "number": 1}
        task.attempt = Attempt(id=f"a-{n}", **place, worker="w", session=None, devices=(), assigned_at=0.0, over=True)
        job.tasks.append(task)
        self.store.commit([encoded([job, task, task.attempt])])
        return task.attempt.id

    def look(self, limit_bytes: int = 0) -> None:
        """Remove what may go."""
        made = Retention(self.path, self.blobs, self.partials, limit_bytes)
        try:
            made.look()
        finally:
            made.close()

    def close(self) -> None:
        self.streams.close()
        self.store.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    made = Folder(tmp_path / "a folder?#%20")
    yield made
    made.close()


def test_what_kept_jobs_name_stays_and_the_rest_goes(folder: Folder) -> None:
    source, made = folder.bundle(b"one", b"two"), folder.bundle(b"result")
    inputs, values = folder.put(b"inputs"), folder.put(b"values")
    command = folder.bundle(b"script")
    nobodys = [*folder.bundle(b"old"), folder.put(b"lonely")]
    folder.job(
        1,
        JobSpec(cell=CellSpec(code="", bundle=source[0], inputs=inputs)),
        Outcome(state=State.SUCCEEDED, values=values),
    )
    folder.job(
        2, JobSpec(command=CommandSpec(argv=("x",), bundle=command[0])), Outcome(state=State.FAILED, files=made[0])
    )
    folder.look()
    assert folder.blobs.missing([*source, *made, inputs, values, *command]) == []
    assert folder.blobs.missing(nobodys) == nobodys


def test_below_the_limit_all_stays(folder: Folder) -> None:
    names = folder.bundle(b"old")
    folder.look(10**6)
    assert folder.blobs.missing(names) == []


def test_what_was_used_within_the_hour_stays(folder: Folder) -> None:
    names = folder.bundle(b"new", b"newer", age_s=1800)
    folder.look()
    assert folder.blobs.missing(names) == []


def test_a_manifest_that_stays_keeps_nothing_waiting_for_what_it_names(folder: Folder) -> None:
    """It goes first: whoever finds it counts on all that it names."""
    names = folder.bundle(b"x" * 1000, b"y" * 1000)
    total = sum(file.size for file in folder.blobs.files())
    folder.look(total - 1)
    assert names[0] in folder.blobs.missing(names)


def test_what_a_client_was_told_is_here_is_here_for_another_hour(folder: Folder) -> None:
    names = folder.bundle(b"x", b"y")
    assert folder.blobs.claim({names[1]: 1, names[2]: 1}) == []
    folder.look()
    assert folder.blobs.missing(names) == [names[0]]


@pytest.mark.parametrize("named", [True, False])
def test_small_blobs_that_share_a_file_stay_while_one_of_them_is_named(folder: Folder, named: bool) -> None:
    contents = [f"small {n}".encode() for n in range(30)]
    digests = [hashlib.sha256(data).hexdigest() for data in contents]
    folder.blobs.take((digest, len(data), [data]) for digest, data in zip(digests, contents, strict=True))
    folder.aged(digests[0], DAY_S)
    folder.job(1, JobSpec(cell=CellSpec(code="", inputs=digests[3] if named else "")))
    folder.look()
    assert folder.blobs.missing(digests) == ([] if named else digests)


def test_a_bundle_whose_blobs_are_gone_already_stops_nothing(folder: Folder) -> None:
    folder.job(1, JobSpec(cell=CellSpec(code="", bundle="ab" * 32)))
    lonely = folder.put(b"lonely")
    folder.look()
    assert lonely not in folder.blobs


def test_streams_of_attempts_that_are_not_kept_go_and_the_others_stay(folder: Folder) -> None:
    attempt = folder.job(1, JobSpec(cell=CellSpec(code="")))
    for name in (attempt, "a-dropped", "a-too"):
        folder.streams.prepare(name)
    folder.look()
    left = [path.name for path in (folder.path / "streams").rglob("*.stream")]
    assert left == [f"{attempt}.stream"]


def test_uploads_that_nobody_went_on_with_go(folder: Folder) -> None:
    data = b"x" * 100
    digest = hashlib.sha256(data).hexdigest()
    folder.partials.add(digest, 100, 0, [data[:50]], hashlib.sha256(data[:50]).hexdigest())
    path = folder.path / "blobs" / "partial" / f"{digest}.100"
    folder.look()
    assert path.exists()
    then = time.time() - 8 * DAY_S
    os.utime(path, (then, then))
    folder.look()
    assert not path.exists()


def test_it_looks_by_itself_and_ends_when_told(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_S", 0.0)
    looked = threading.Event()
    monkeypatch.setattr(Retention, "_remove_blobs", lambda self, kept: looked.set())
    made = Retention(folder.path, folder.blobs, folder.partials, 0)
    assert looked.wait(30)
    made.close()
    assert not made._thread.is_alive()


def test_the_specs_that_are_read_here_are_those_that_are_written(folder: Folder) -> None:
    """`kept` decodes a part of the specs; a field of another name would make blobs look as if nobody named them."""
    spec = JobSpec(cell=CellSpec(code="", bundle="b", inputs="i"), command=CommandSpec(argv=(), bundle="c"))
    known = msgspec.to_builtins(spec)
    assert known["cell"].keys() >= {"bundle", "inputs"}
    assert known["command"].keys() >= {"bundle"}
    assert {*CellSpec.__struct_fields__, *CommandSpec.__struct_fields__} == {
        *("code", "bundle", "session", "execution_count", "idle_timeout_s", "inputs", "outputs", "output_globs"),
        *("argv", "env", "cwd"),
    }, "does the new field name a blob? then `gpulayer_server.store.kept` has to know it"


def test_what_a_job_counts_on_that_comes_while_it_looks_stays(folder: Folder) -> None:
    """It is not among those that were looked at, and its manifest is as old as the others."""
    names, others = folder.bundle(b"one", b"two"), folder.bundle(b"three")
    assert folder.blobs.rely(names[0])
    folder.look()
    assert folder.blobs.missing(names) == []
    assert folder.blobs.missing(others) == others
    assert not folder.blobs.rely(others[0])


def test_nobody_is_counted_on_for_ever(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    names = folder.bundle(b"one")
    assert folder.blobs.rely(names[0])
    monkeypatch.setattr(blobs, "_RELIED_S", 0.0)
    folder.look()
    assert folder.blobs.missing(names) == names


def test_what_calls_name_stays_as_long_as_their_rows(folder: Folder) -> None:
    source = folder.bundle(b"module")
    first, argument, result, nobodys = (folder.put(data) for data in (b"init", b"argument", b"result", b"nobody's"))
    function = FunctionSpec(name="f", qualname="f", bundle=source[0])
    folder.job(1, JobSpec(calls=CallsSpec(function=function, init_blobs=(first,))))
    run = CallRun(map="j-1.1", first=0, codes=bytes([OK]), data=(b"",), blobs=(result,))
    args = ArgsRow(n=1, k=1, first=0, args=(b"",), blobs=(argument,))
    folder.store.commit([encoded([args, ResultsRow(n=1, k=1, run=run)])])
    folder.look()
    assert folder.blobs.missing([*source, first, argument, result]) == []
    assert folder.blobs.missing([nobodys]) == [nobodys]
    folder.store.commit([dropped((1, 1))])
    folder.look()
    assert folder.blobs.missing([*source, first, argument, result]) == [argument, result]
