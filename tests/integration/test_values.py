"""`--in` and `--out` over real processes: values go with a cell and come back, whoever dies on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.notebook.values import Values
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import JobView, State
from gpulayer.protocol.values.named import Framed
from gpulayer.source.blobs import Blobs
from gpulayer_worker.workspace import Workspaces
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook, Result
from tests.support.processes import until

PYTHON6 = os.environ.get("GPULAYER_TEST_IPYKERNEL6", "")
SETUP = """\
import numpy as np
import pandas as pd
a = np.arange(12.0).reshape(3, 4)
b = {'scale': 2.5, 'names': ['x', 'y']}
frame = pd.DataFrame({'x': [1, 2, 3], 'y': list('abc')}, index=pd.Index([10, 20, 30], name='k'))
"""


def value(notebook: Notebook, expression: str) -> str:
    """What an expression is in the notebook's own kernel."""
    result = notebook.run(expression)
    assert result.ok, result.traceback
    [text] = result.data("text/plain")
    return text


def succeeded(result: Result) -> Result:
    assert result.ok, (result.traceback, result.status)
    return result


@pytest.fixture(scope="module")
def home(shared: Deployment) -> Notebook:
    """A notebook with the variables of SETUP."""
    notebook = shared.notebook({"train.py": "LR = 1\n"})
    succeeded(notebook.run(SETUP))
    return notebook


@pytest.mark.parametrize("options", ["", "--session values"], ids=["fresh", "session"])
def test_arrays_and_frames_go_both_ways(deployment: Deployment, home: Notebook, options: str) -> None:
    code = (
        "c = a * b['scale']\n"
        "big = frame[frame.x > 1].assign(z=lambda f: f.x * 2)\n"
        "print(type(a).__name__, a.flags.writeable)"
    )
    result = succeeded(home.run(f"%%gpulayer {options} --in a,b,frame --out c,big\n{code}"))
    assert result.text() == "ndarray True\n"
    assert value(home, "np.array_equal(c, a * 2.5), c.dtype, c.flags.writeable") == "(True, dtype('float64'), True)"
    assert value(home, "big.equals(frame[frame.x > 1].assign(z=[4, 6])), big.index.name") == "(True, 'k')"


def test_in_a_session_values_stay(deployment: Deployment, home: Notebook) -> None:
    succeeded(home.run("%%gpulayer --session stay --in b\nb['names'].append('z')"))
    succeeded(home.run("%%gpulayer --session stay --out names\nnames = b['names']"))
    assert value(home, "names, b['names']") == "(['x', 'y', 'z'], ['x', 'y'])"


def test_a_hundred_megabytes(deployment: Deployment, home: Notebook) -> None:
    succeeded(home.run("big = np.random.default_rng(7).random(13_000_000)"))
    result = succeeded(home.run("%%gpulayer --in big --out twice\ntwice = big * 2"))
    assert "job" in result.status[-1]
    assert value(home, "np.array_equal(twice, big * 2)") == "True"
    succeeded(home.run("del big, twice"))


def test_the_same_value_is_sent_once(deployment: Deployment, home: Notebook) -> None:
    succeeded(home.run("once = np.random.default_rng(8).random(50_000)"))
    first = succeeded(home.run("%%gpulayer --in once --out n\nn = len(once)"))
    assert any(line.startswith("◐ sending values, 400 kB") for line in first.status)
    again = succeeded(home.run("%%gpulayer --in once --out n\nn = len(once) + 1"))
    assert not any("sending values" in line for line in again.status)
    assert value(home, "n") == "50001"


def test_what_cannot_go_is_refused_before_anything_is_sent(deployment: Deployment, home: Notebook) -> None:
    before = len(deployment.api.jobs(limit=1000))
    home.run("bad = {'model': open('/dev/null')}")
    refused = home.run("%%gpulayer --in a,bad\nprint('ran')")
    line = "gpulayer: --in bad['model'] is of type _io.TextIOWrapper, which does not travel: give its path"
    assert refused.traceback.startswith(line)
    missing = home.run("%%gpulayer --in framee\nprint('ran')")
    assert missing.traceback == "gpulayer: --in framee: there is no such variable here; did you mean frame?"
    assert len(deployment.api.jobs(limit=1000)) == before


def test_what_does_not_come_back_fails_the_cell_and_sets_nothing(deployment: Deployment, home: Notebook) -> None:
    home.run("c = 'as it was'")
    missing = home.run("%%gpulayer --out c,losss\nc = 1\nloss = 2\nprint('ran')")
    assert missing.text() == "ran\n"
    line = "NameError: --out losss: the cell ended without a variable of this name; did you mean loss?"
    assert missing.traceback == line
    assert (missing.error or {})["ename"] == "NameError"
    refused = home.run("%%gpulayer --out c\nc = [1, lambda: 0]")
    assert refused.traceback.startswith("ValueRefused: --out c[1] is of type function, which does not travel: ")
    failed = home.run("%%gpulayer --out c\nc = 1\n1 / 0")
    assert (failed.error or {})["ename"] == "ZeroDivisionError"
    assert value(home, "c") == "'as it was'"
    job = deployment.api.jobs(limit=1)[0]
    assert job.state is State.FAILED
    assert job.outcome is not None
    assert job.outcome.values == ""


def test_attach_sets_the_values_too(deployment: Deployment, home: Notebook) -> None:
    other = deployment.notebook()
    started = succeeded(home.run("%%gpulayer --detach --out r,s\nr = [1, 2]\ns = 'text'"))
    [shown] = started.data("text/plain")
    job = shown.strip("<>").split()[-1]
    for notebook in (home, other):
        attached = succeeded(notebook.run(f"%gpulayer attach {job}"))
        assert f"r, s set from job {job}\n" in attached.text()
        assert value(notebook, "r, s") == "([1, 2], 'text')"
    other.close()


def test_an_interpreter_that_lacks_the_library_says_so(shared: Deployment, home: Notebook) -> None:
    if not PYTHON6:
        pytest.skip("GPULAYER_TEST_IPYKERNEL6 names no interpreter that has ipykernel 6")
    with Deployment() as deployment:
        deployment.plane.start()
        deployment.worker("six", python=PYTHON6, warm=0)
        notebook = deployment.notebook()
        succeeded(notebook.run(SETUP))
        plain = "b = {'k': (1, {2.5}, 'text')}"
        succeeded(notebook.run(plain))
        succeeded(notebook.run("%%gpulayer --in b --out c\nc = [b, len(b['k'])]"))
        assert value(notebook, "c") == "[{'k': (1, {2.5}, 'text')}, 3]"
        lacking = notebook.run("%%gpulayer --in a\nprint('ran')")
        line = "LibraryMissing: a: the value needs numpy, which this interpreter lacks: install numpy there"
        assert lacking.traceback == line


# ---------------------------------------------------------------- kills


@pytest.fixture(scope="module")
def broken() -> Iterator[Deployment]:
    with Deployment(failpoints=True, env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start()
        deployment.worker("alpha", slots=2)
        succeeded(deployment.notebook().run(SETUP + "big = np.random.default_rng(1).random(1_500_000)"))
        yield deployment


CELL = "%%gpulayer --in big,b --out twice,n\ntwice = big * 2\nn = b['names'] + [float(twice[0])]\nprint('once')"


def another_value(deployment: Deployment) -> None:
    """One that the control plane does not have: else there is nothing to send."""
    succeeded(deployment.notebooks[0].run("big = np.random.random(1_500_000)"))


def holds(deployment: Deployment, result: Result) -> JobView:
    """The cell ran once, and its values are here."""
    succeeded(result)
    assert result.text() == "once\n"
    assert (
        value(deployment.notebooks[0], "np.array_equal(twice, big * 2), n == b['names'] + [twice[0]]") == "(True, True)"
    )
    job = deployment.api.jobs(limit=1)[0]
    assert job.outcome is not None
    assert job.outcome.values_bytes > 12_000_000
    deployment.notebooks[0].run("del twice, n")
    return job


STEPS = ["agent.kernel-taken", "kernel.values-written", "agent.idle-written", "agent.mid-upload", "agent.mid-delivery"]


@pytest.mark.parametrize("step", STEPS)
def test_an_agent_that_dies_loses_no_value(broken: Deployment, step: str) -> None:
    another_value(broken)
    with broken.failpoint(step) as point:
        cell = broken.notebooks[0].start(CELL)
        point.await_hit()
        broken.workers["alpha"].kill_agent()
    holds(broken, cell.wait())


@pytest.mark.parametrize("step", ["client.values-sent", "agent.mid-upload", "agent.mid-delivery"])
def test_a_control_plane_that_dies_loses_no_value(broken: Deployment, step: str) -> None:
    another_value(broken)
    with broken.failpoint(step) as point:
        cell = broken.notebooks[0].start(CELL)
        point.await_hit()
        broken.plane.kill()
        broken.plane.start()
    job = holds(broken, cell.wait())
    assert job.attempts == 1


def test_a_notebook_that_dies_gets_the_values_by_attach(broken: Deployment) -> None:
    notebook = broken.notebooks[0]
    another_value(broken)
    with broken.failpoint("agent.mid-upload") as point:
        notebook.start(CELL)
        point.await_hit()
        running = broken.api.jobs(limit=1)[0]
        assert running.state is State.RUNNING
        until(lambda: broken.api.job(running.id).progress.startswith("sending results back"), "its progress")
        notebook.start_kernel()
        succeeded(notebook.run("%load_ext gpulayer\n" + SETUP))
    attached = succeeded(notebook.run(f"%gpulayer attach {running.id}"))
    assert attached.text() == f"once\ntwice, n set from job {running.id}\n"
    assert value(notebook, "len(twice), n[:2]") == "(1500000, ['x', 'y'])"
    succeeded(notebook.run("big = twice / 2"))


def test_stop_while_values_are_sent_ends_the_job(broken: Deployment) -> None:
    notebook = broken.notebooks[0]
    another_value(broken)
    with broken.failpoint("agent.mid-upload") as point:
        cell = notebook.start(CELL)
        point.await_hit()
        job = broken.api.jobs(limit=1)[0].id
        notebook.interrupt()
        cell.until(lambda c: any("cancelling" in line for line in c.out.status))
    result = cell.wait()
    state = broken.api.job(job)
    assert state.outcome is not None
    if state.state is State.CANCELLED:  # the wish may come when all is sent
        assert state.outcome.problem == "cancelled while its results were sent back"
        assert "was cancelled: cancelled while its results were sent back" in result.traceback
        assert state.outcome.values == ""
    else:
        assert state.state is State.SUCCEEDED
    until(lambda: broken.slots_free("alpha") == 2, "the slot")


# ---------------------------------------------------------------- a worker elsewhere


def test_a_worker_elsewhere_fetches_the_values_once(plane: Deployment, tmp_path: Path) -> None:
    class Tie:
        endpoint: Endpoint | None = plane.plane.endpoint

    values = Values.of(("a",), {"a": b"x" * 300_000})
    assert values is not None
    values.send(Tie(), lambda line: None)
    workspaces = Workspaces(Blobs(tmp_path / "blobs"), lambda: plane.plane.endpoint)
    told: list[str] = []
    for _ in range(2):
        span = workspaces.blob(values.digest, told.append)
        assert Path(span.path).read_bytes() == b"".join(Framed({"a": b"x" * 300_000}).pieces())
        assert (span.offset, span.size) == (0, values.size_bytes)
    assert told == ["fetching the values of --in"]
    assert span.path.startswith(str(tmp_path))
    beside = Workspaces(Blobs(tmp_path / "other"), lambda: plane.plane.endpoint, lambda: plane.data / "blobs")
    assert beside.blob(values.digest, told.append).path.startswith(str(plane.data))
