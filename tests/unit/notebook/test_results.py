"""What a job leaves, taken when it has ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gpulayer.client import transfer
from gpulayer.client.errors import ControlPlaneError
from gpulayer.notebook.results import Results
from gpulayer.notebook.stop import Stop
from gpulayer.protocol.types import CellSpec, JobView, Outcome, State
from gpulayer.protocol.values.named import Framed
from gpulayer.source import FileEntry, Manifest
from tests.support.blobhost import BlobHost, digest


class Place:
    """A notebook's folder and variables, and what is shown."""

    def __init__(self, host: BlobHost, root: Path) -> None:
        self.host = host
        self.root = root
        self.variables: dict[str, Any] = {}
        self.shown: list[str] = []
        source: Any = SimpleNamespace(root=lambda: str(root))
        self.results = Results(host.tie, source)

    def expect(self, **cell: Any) -> None:
        bundle: Any = SimpleNamespace(root=self.root, manifest=Manifest(()))
        self.results.expect("k3f9", CellSpec(code="", **cell), bundle, 0)

    def take(self, job: JobView, *, told: bool = False, stop: Stop | None = None) -> None:
        shell = SimpleNamespace(push=self.variables.update)
        status: Any = SimpleNamespace(note=self.shown.append, show=lambda job: self.shown.append(job.state.value))
        self.results.take(shell, job, status, stop or Stop(), told=told)

    def job(self, state: State = State.SUCCEEDED, **values: Any) -> JobView:
        """One that left `values`, and a file a.csv."""
        data = b"".join(Framed(values).pieces())
        entry = FileEntry(path="a.csv", mode=0o644, size=1, sha256=self.host.put(b"a"))
        files = self.host.put(Manifest([entry]).to_bytes())
        left = {"values": self.host.put(data), "values_bytes": len(data)} if values else {}
        return JobView(id="k3f9", state=state, attempt="a-1", outcome=Outcome(state=state, files=files, **left))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    monkeypatch.setattr(transfer, "PAUSES_S", (0.01,))
    return Place(BlobHost().serve(monkeypatch, "gpulayer.client.transfer"), tmp_path)


def test_values_and_files_of_a_job_that_succeeded(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.expect(outputs=("c",), output_globs=("*.csv", "*.pt"))
    assert place.results.expected("k3f9")
    place.take(place.job(c=[1]))
    assert place.variables == {"c": [1]}
    assert (place.root / "a.csv").read_bytes() == b"a"
    out, err = capsys.readouterr()
    assert out == "1 file, 1 B: a.csv\n"
    assert err == "--output *.pt: the cell made and changed no such file\n"
    assert place.shown[-1] == "succeeded"


def test_under_attach_it_is_said_which_variables_were_set(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    job = place.job(c=[1], d=2)
    assert place.results.wanted(job)
    assert not place.results.expected("k3f9")
    place.take(job, told=True)
    assert place.variables == {"c": [1], "d": 2}
    assert capsys.readouterr().out == "1 file, 1 B: a.csv\nc, d set from job k3f9\n"


def test_of_a_job_that_left_nothing_nothing_is_wanted(place: Place) -> None:
    assert not place.results.wanted(JobView(id="k", state=State.SUCCEEDED))
    assert not place.results.wanted(JobView(id="k", state=State.SUCCEEDED, outcome=Outcome(state=State.SUCCEEDED)))


def test_of_a_job_that_failed_only_files_are_taken(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.expect(outputs=("c",), output_globs=("*.csv",))
    place.take(place.job(State.FAILED))
    assert place.variables == {}
    assert (place.root / "a.csv").exists()
    place.take(JobView(id="k3f9", state=State.FAILED, attempt="a-1", outcome=Outcome(state=State.FAILED)))
    place.take(JobView(id="k3f9", state=State.REJECTED))
    assert capsys.readouterr().err == ""


def test_what_goes_wrong_is_raised_where_nothing_else_is(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.host.break_next = [httpx.ConnectError("refused")] * 2
    with pytest.raises(ControlPlaneError, match="refused"):
        place.take(place.job())
    place.host.break_next = [httpx.ConnectError("refused")] * 2
    place.take(place.job(State.FAILED))
    assert "gpulayer: the control plane went away while the files were fetched (refused)" in capsys.readouterr().err
    assert place.shown[-1] == "failed"


def test_an_interrupt_ends_the_taking(place: Place) -> None:
    stop = Stop()
    stop.arm()
    place.take(place.job(), stop=stop)
    with pytest.raises(KeyboardInterrupt):
        stop._interrupted(2, None)  # pyright: ignore[reportPrivateUsage]


def test_what_was_not_asked_for_is_not_written(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.expect(outputs=("c",))
    place.take(place.job(c=1))
    assert list(place.root.iterdir()) == []
    assert digest(b"a") in place.host.blobs
    assert capsys.readouterr().out == ""
