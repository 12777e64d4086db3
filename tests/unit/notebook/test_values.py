"""`--in` and `--out` on the notebook's side."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import httpx
import numpy
import pytest

from gpulayer.client import transfer
from gpulayer.client.errors import ControlPlaneError, RequestRefused
from gpulayer.notebook.options import UsageError, parse_cell_line
from gpulayer.notebook.values import Values, ValuesRefused, fetch
from gpulayer.protocol.types import JobView, Outcome, State
from gpulayer.protocol.values.named import Framed
from tests.support.blobhost import BlobHost, problem


def quiet(line: str) -> None:
    """Nobody looks."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> BlobHost:
    monkeypatch.setattr(transfer, "PAUSES_S", (0.01, 0.01))
    return BlobHost().serve(monkeypatch, "gpulayer.client.transfer")


def values(**variables: Any) -> Values:
    made = Values.of(tuple(variables), variables)
    assert made is not None
    return made


def job_with(host: BlobHost, data: bytes) -> JobView:
    digest = host.put(data)
    outcome = Outcome(state=State.SUCCEEDED, values=digest, values_bytes=len(data))
    return JobView(id="k3f9", state=State.SUCCEEDED, outcome=outcome)


def framed(**variables: Any) -> bytes:
    return b"".join(Framed(variables).pieces())


# ---------------------------------------------------------------- going


def test_no_names_are_no_values() -> None:
    assert Values.of((), {"a": 1}) is None


def test_a_missing_variable_is_one_line_that_names_the_nearest() -> None:
    with pytest.raises(ValuesRefused, match=r"^--in lossess: there is no such variable here; did you mean losses[?]$"):
        Values.of(("lossess",), {"losses": 1})


def test_a_refusal_names_the_path_and_what_to_do() -> None:
    with pytest.raises(ValuesRefused, match=r"^--in b\['model'\] is of type object, which does not travel: give "):
        Values.of(("b",), {"b": {"model": object()}})


def test_more_than_travels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpulayer.notebook.values.MOST_BYTES", 1000)
    with pytest.raises(ValuesRefused, match=r"^--in: the values have 8 kB, at most 1 kB travel$"):
        Values.of(("a",), {"a": numpy.ones(1000)})


def test_equal_values_are_the_same_blob_and_arrive(host: BlobHost) -> None:
    told: list[str] = []
    made = values(a=numpy.arange(100_000.0), b="x")
    made.send(host.tie, told.append)
    assert host.blobs[made.digest] == framed(a=numpy.arange(100_000.0), b="x")
    assert values(a=numpy.arange(100_000.0), b="x").digest == made.digest
    assert told[0] == "◐ sending values, 800 kB"


def test_an_array_is_sent_from_its_own_memory(host: BlobHost) -> None:
    array = numpy.ones(4_000_000)
    tracemalloc.start()
    try:
        made = values(a=array)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert made.size_bytes > array.nbytes


@pytest.mark.parametrize(
    "broken", [httpx.ConnectError("refused"), httpx.Response(502), problem(401, "unauthorized")], ids=str
)
def test_a_break_is_tried_again(host: BlobHost, broken: Any) -> None:
    told: list[str] = []
    host.break_next = [httpx.ReadError("reset"), broken]
    made = values(a=1)
    made.send(host.tie, told.append)
    assert made.digest in host.blobs
    assert (
        "◌ the control plane went away while the values were sent (reset); trying again in 0.01 s, try 2 of 3" in told
    )


def test_one_that_stays_away_is_told(host: BlobHost) -> None:
    host.break_next = [httpx.ConnectError("refused")] * 3
    with pytest.raises(ControlPlaneError, match=r"while the values were sent \(refused\); run the cell again$"):
        values(a=1).send(host.tie, quiet)


def test_a_refusal_is_not_tried_again(host: BlobHost) -> None:
    host.break_next = [problem(507, "disk")]
    with pytest.raises(RequestRefused, match=r"disk"):
        values(a=1).send(host.tie, quiet)
    assert len(host.asked) == 1


def test_a_value_that_changes_on_its_way_is_told(host: BlobHost) -> None:
    array = numpy.ones(5000)
    made = values(a=array)
    array[7] = 2.0
    with pytest.raises(ValuesRefused, match=r"^--in: a value changed while it was sent; run the cell again$"):
        made.send(host.tie, quiet)
    assert host.blobs == {}


# ---------------------------------------------------------------- coming


def test_values_come_by_their_names(host: BlobHost) -> None:
    job = job_with(host, framed(c=[1, 2], d=numpy.arange(9000.0)))
    came = fetch(job, host.tie, quiet, ("c", "d"))
    assert list(came) == ["c", "d"]
    assert came["c"] == [1, 2]
    came["d"][0] = 5.0
    assert came["d"][:2].tolist() == [5.0, 1.0]


def test_of_another_kernels_job_all_are_taken(host: BlobHost) -> None:
    assert fetch(job_with(host, framed(c=1)), host.tie, quiet) == {"c": 1}


def test_a_job_without_values(host: BlobHost) -> None:
    assert fetch(JobView(id="k", state=State.SUCCEEDED), host.tie, quiet) == {}
    assert (
        fetch(JobView(id="k", state=State.FAILED, outcome=Outcome(state=State.FAILED)), host.tie, quiet, ("c",)) == {}
    )
    assert host.asked == []


@pytest.mark.parametrize("wanted", [("c", "print"), ("c",), None])
def test_other_names_than_were_asked_for_are_refused(host: BlobHost, wanted: tuple[str, ...] | None) -> None:
    name = "print" if wanted else "not a name"
    with pytest.raises(ValuesRefused, match=r"the values of job k3f9 can't be read here: they are called"):
        fetch(job_with(host, framed(**{name: 1})), host.tie, quiet, wanted)


def test_bytes_that_are_no_values_are_told(host: BlobHost) -> None:
    with pytest.raises(ValuesRefused, match=r"can't be read here: the bytes are no values"):
        fetch(job_with(host, b"something else"), host.tie, quiet)


def test_bytes_that_are_not_what_their_digest_says_are_never_used(host: BlobHost) -> None:
    job = job_with(host, framed(c=1))
    [digest] = host.blobs
    host.blobs[digest] = framed(c=2)
    with pytest.raises(ControlPlaneError, match=r"came damaged.*%gpulayer attach k3f9 fetches them"):
        fetch(job, host.tie, quiet)


def test_a_download_that_breaks_is_tried_again(host: BlobHost) -> None:
    host.break_next = [httpx.ReadTimeout("slow"), httpx.Response(503)]
    assert fetch(job_with(host, framed(c=1)), host.tie, quiet) == {"c": 1}


# ---------------------------------------------------------------- the options


def test_the_options_name_variables_and_globs() -> None:
    options = parse_cell_line("--in a,b --in b,c --out 'd, e' --output '*.csv' --output results/ --output '*.csv'")
    assert options.inputs == ("a", "b", "c")
    assert options.outputs == ("d", "e")
    assert options.output_globs == ("*.csv", "results/")
    assert parse_cell_line("").inputs == ()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--in 1a", "--in: '1a' is no name of a variable; write them like a,b (%%gpulayer -h shows the options)"),
        ("--in a,,b", "--in: '' is no name of a variable; write them like a,b (%%gpulayer -h shows the options)"),
        (
            "--out class",
            "--out: 'class' is no name of a variable; write them like a,b (%%gpulayer -h shows the options)",
        ),
        ("--out a.b", "--out: 'a.b' is no name of a variable; write them like a,b (%%gpulayer -h shows the options)"),
        (
            "--output ../x",
            "--output: '../x' is no glob below the cell's folder; write it like results/*.csv "
            "(%%gpulayer -h shows the options)",
        ),
        (
            "--output ' '",
            "--output: ' ' is no glob below the cell's folder; write it like results/*.csv "
            "(%%gpulayer -h shows the options)",
        ),
    ],
)
def test_what_is_no_name_or_glob_is_told(line: str, error: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(error)}$"):
        parse_cell_line(line)
