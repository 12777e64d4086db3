"""The magics' options and commands, and the words in which they refuse."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook
from tests.support.processes import until

COUNT = """\
import os, time
for n in range(3):
    print(n)
while not os.path.exists({go!r}):
    time.sleep(0.01)
print('end')
"""


class Gate:
    """A file that lets a cell go on."""

    def __init__(self, path: Path):
        self.path = path
        self.code = COUNT.format(go=str(path))

    def open(self) -> None:
        self.path.touch()


@pytest.fixture
def gate(deployment: Deployment, request: pytest.FixtureRequest) -> Gate:
    """Lets the cell with `gate.code` go on."""
    return Gate(deployment.folder / f"go-{abs(hash(request.node.name))}")


@pytest.fixture(scope="module")
def second(shared: Deployment) -> Notebook:
    """Another notebook, with a folder that tests change."""
    return shared.notebook()


def job_id(result_text: list[str]) -> str:
    """The id in a handle's repr."""
    assert result_text[0].startswith("<gpulayer job ")
    return result_text[0].split()[-1].rstrip(">")


# ---------------------------------------------------------------- detach, attach, cancel, status


def test_a_detached_cell_gives_a_handle_and_attach_gives_all_of_its_output_once(
    deployment: Deployment, notebook: Notebook, gate: Gate
) -> None:
    handle = notebook.run(f"%%gpulayer --detach\n{gate.code}")
    job = job_id(handle.data("text/plain"))
    assert handle.text() == ""
    cell = notebook.start(f"%gpulayer attach {job}").until_text("2\n")
    gate.open()
    assert cell.wait().text() == "0\n1\n2\nend\n"
    assert notebook.run(f"%gpulayer attach {job}").text() == "0\n1\n2\nend\n"
    assert deployment.api.job(job).state is State.SUCCEEDED


def test_a_second_notebook_attaches_while_it_runs(notebook: Notebook, second: Notebook, gate: Gate) -> None:
    cell = notebook.start(f"%%gpulayer\n{gate.code}").until_text("2\n")
    job = cell.out.status[-1].rpartition("job ")[2]
    there = second.start(f"%gpulayer attach {job}").until_text("2\n")
    gate.open()
    assert (cell.wait().text(), there.wait().text()) == ("0\n1\n2\nend\n", "0\n1\n2\nend\n")


def test_stop_under_attach_detaches(deployment: Deployment, notebook: Notebook, gate: Gate) -> None:
    job = job_id(notebook.run(f"%%gpulayer --detach\n{gate.code}").data("text/plain"))
    cell = notebook.start(f"%gpulayer attach {job}").until_text("2\n")
    notebook.interrupt()
    result = cell.wait()
    assert result.ok
    assert f"detached; job {job} goes on" in result.text()
    assert deployment.api.job(job).state is State.RUNNING
    gate.open()
    until(lambda: deployment.api.job(job).state is State.SUCCEEDED, "the job's end")


def test_attach_raises_what_the_cell_raised(notebook: Notebook) -> None:
    handle = notebook.run("%%gpulayer --detach\n1 / 0")
    result = notebook.run(f"%gpulayer attach {job_id(handle.data('text/plain'))}")
    assert (result.error or {})["ename"] == "ZeroDivisionError"
    assert f"Cell In[{handle.execution_count}], line 2" in result.traceback


def test_cancel(deployment: Deployment, notebook: Notebook, gate: Gate) -> None:
    job = job_id(notebook.run(f"%%gpulayer --detach\n{gate.code}").data("text/plain"))
    until(lambda: deployment.api.job(job).state is State.RUNNING, "the job's begin")
    assert "cancelling" in notebook.run(f"%gpulayer cancel {job}").text()
    until(lambda: deployment.api.job(job).state is State.CANCELLED, "the job's end")
    assert notebook.run(f"%gpulayer cancel {job}").text().startswith("■ cancelled on alpha")


def test_a_handle_tells_the_jobs_status(notebook: Notebook) -> None:
    notebook.run("%%gpulayer --detach\n1")
    notebook.run("handle = _")
    assert notebook.run("handle.status().name").data("text/plain") == ["'cell'"]


# ---------------------------------------------------------------- where it runs


def test_a_worker_is_chosen_by_name(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer --worker beta\n1 + 1")
    assert result.data("text/plain") == ["2"]
    assert result.status[-1].startswith("✓ done on beta")


def test_a_worker_that_nobody_knows_is_refused_at_once_with_the_nearest_name(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer --worker alhpa\n1")
    lines = result.traceback.splitlines()
    assert lines[0] == "gpulayer: no eligible worker"
    assert lines[1] == "  no worker is named 'alhpa'; did you mean alpha?"
    assert (result.error or {})["ename"] == "JobRejected"
    assert result.status[-1].startswith("✗ no eligible worker")


def test_an_accelerator_that_nobody_has_is_refused_with_a_reason_for_each_worker(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer --accelerator cuda --devices 2\n1")
    lines = [" ".join(line.split()) for line in result.traceback.splitlines()]
    assert lines[0] == "gpulayer: no eligible worker"
    assert "alpha needs 2 usable cuda devices, worker has 0 (CPU only)" in lines
    assert "beta needs 2 usable cuda devices, worker has 0 (CPU only)" in lines


# ---------------------------------------------------------------- what can't be understood


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--sesion x", "unknown option --sesion; did you mean --session?"),
        ("--timeout soon", "'soon' is no duration; write it like 90s, 5min or 2h"),
        ("--max-output much", "'much' is no size; write it like 500kB or 20MB"),
        ("--accelerator tpu", "unknown accelerator 'tpu': cuda, rocm, mps or cpu"),
        ("--devices 2", "--devices counts accelerators: name their kind too, like --accelerator cuda"),
        ("--session 'x", "the line can't be read: No closing quotation"),
    ],
)
def test_a_wrong_option_is_one_line_that_helps(notebook: Notebook, line: str, said: str) -> None:
    result = notebook.run(f"%%gpulayer {line}\nprint('never')")
    assert said in result.traceback
    assert len(result.traceback.splitlines()) == 1
    assert result.text() == ""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sttus", "unknown command 'sttus'"),
        ("attach", "%gpulayer attach JOB: JOB is missing"),
        ("cancel", "%gpulayer cancel JOB: JOB is missing"),
        ("attach zzzz", "no job zzzz; the last ones are "),
        ("cancel zzzz", "no job zzzz; the last ones are "),
        ("logs zzzz", "no job zzzz; the last ones are "),
        ("release zzzz", "no session zzzz"),
        ("session x --worker alhpa", "no worker alhpa; did you mean alpha?"),
        ("status now", "%gpulayer status takes nothing more, got 'now'"),
    ],
)
def test_a_wrong_command_is_one_line_that_helps(notebook: Notebook, line: str, said: str) -> None:
    result = notebook.run(f"%gpulayer {line}")
    assert said in result.traceback
    assert len(result.traceback.splitlines()) == 1


@pytest.mark.parametrize("line", ["%gpulayer", "%gpulayer -h", "%%gpulayer --help\n1"])
def test_help_shows_options_and_examples(notebook: Notebook, line: str) -> None:
    text = notebook.run(line).text()
    assert "--accelerator KIND" in text
    assert "%%gpulayer --accelerator cuda" in text


# ---------------------------------------------------------------- the folder


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: (folder / ".env").write_text("TOKEN=1"), ".env"),
        (lambda folder: os.truncate(_touched(folder / "big.bin"), 51_000_000), "big.bin"),
        (lambda folder: (folder / "out").symlink_to("/etc"), "out"),
    ],
    ids=["a secret", "a large file", "a symlink that leaves the folder"],
)
def test_a_folder_that_should_not_travel_is_refused_with_the_file(
    notebook: Notebook, second: Notebook, make: Callable[[Path], object], said: str
) -> None:
    make(second.folder)
    try:
        result = second.run("%%gpulayer\nprint('never')")
    finally:
        for path in second.folder.iterdir():
            path.unlink()
    assert said in result.traceback
    assert len(result.traceback.splitlines()) == 1
    assert (result.error or {})["ename"] == "SourceRefused"
    assert result.text() == ""
    assert second.run("%%gpulayer\nimport os\nos.listdir()").data("text/plain") == ["[]"]


def _touched(path: Path) -> Path:
    path.touch()
    return path


def test_the_home_folder_travels_only_by_name(deployment: Deployment) -> None:
    home = deployment.notebook({"a.txt": "1"}, env={"HOME": str(deployment.folder / f"n{len(deployment.notebooks)}")})
    refused = home.run("%%gpulayer\nprint('never')")
    assert "--source" in refused.traceback
    assert len(refused.traceback.splitlines()) == 1
    named = home.run(f"%%gpulayer --source {home.folder}\nimport os\nos.path.exists('a.txt')")
    assert named.data("text/plain") == ["True"]
    home.close()


def test_a_named_folder_travels_instead(deployment: Deployment, notebook: Notebook) -> None:
    folder = deployment.folder / "elsewhere"
    folder.mkdir()
    (folder / "only.txt").write_text("1")
    assert notebook.run(f"%%gpulayer --source {folder}\nimport os\nos.listdir()").data("text/plain") == ["['only.txt']"]
