"""`%gpulayer`: looking at jobs, machines and sessions, and steering them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from gpulayer.protocol.types import State
from tests.integration.conftest import FILES
from tests.support.deployment import Deployment
from tests.support.notebook import Cell, Notebook
from tests.support.processes import until

WAIT = "import os, time\nprint('first')\nwhile not os.path.exists({go!r}):\n    time.sleep(0.01)\nprint('last')"


@pytest.fixture
def gate(deployment: Deployment, request: pytest.FixtureRequest) -> Path:
    """A file that lets the cells of `WAIT` go on."""
    return deployment.folder / f"go-{abs(hash(request.node.name))}"


def detached(notebook: Notebook, code: str, options: str = "") -> str:
    """The id of a job that was given away."""
    [text] = notebook.run(f"%%gpulayer --detach {options}\n{code}").data("text/plain")
    return text.removeprefix("<gpulayer job ").removesuffix(">")


def running(deployment: Deployment, job: str) -> str:
    """The job, once it runs."""
    until(lambda: deployment.api.job(job).state is State.RUNNING, f"job {job} to run")
    return job


def ended(deployment: Deployment, job: str) -> str:
    """The job, once it is over."""
    until(lambda: deployment.api.job(job).terminal, f"the end of job {job}")
    return job


def table(notebook: Notebook, line: str) -> list[str]:
    """What a line prints."""
    result = notebook.run(line)
    assert result.ok, result.traceback
    lines = result.text().splitlines()
    assert max(map(len, lines)) <= 80
    return lines


# ---------------------------------------------------------------- looking


def test_status_shows_machines_jobs_and_sessions(deployment: Deployment, notebook: Notebook) -> None:
    notebook.run("%%gpulayer --session looked-at\n1")
    ended(deployment, deployment.api.jobs(limit=1)[0].id)  # the cell ends a commit before its job does
    lines = table(notebook, "%gpulayer status")
    assert lines[0].startswith("machines · 2 online")  # others may have gone before
    assert any(line.split()[:5] == ["alpha", "3", "of", "4", "slots"] for line in lines)
    assert any(line.split()[:5] == ["beta", "1", "of", "1", "slots"] for line in lines)
    jobs = lines.index("jobs")
    assert lines[jobs + 2].split()[0] == "✓"
    assert lines[lines.index("sessions") + 2].split()[:4] == ["○", "looked-at", "alpha", "idle"]


def test_jobs_shows_what_runs_what_waits_and_why(deployment: Deployment, notebook: Notebook, gate: Path) -> None:
    first = running(deployment, detached(notebook, WAIT.format(go=str(gate)), "--worker beta --name 'the first'"))
    second = detached(notebook, "1", "--worker beta")
    until(lambda: deployment.api.job(second).reasons, "the second job's reasons")
    lines = table(notebook, "%gpulayer jobs")
    [at] = [n for n, line in enumerate(lines) if second in line]
    assert lines[at].split()[0] == "○"
    assert lines[at].split()[-1] == "waiting"
    assert lines[at + 1].strip() == "beta: all 1 slot busy"
    [line] = [line for line in lines if first in line]
    assert line.split()[0] == "●"
    assert line.split()[2:5] == ["the", "first", "beta"]  # how far apart depends on the longest name shown
    assert line.endswith("running")
    gate.touch()
    ended(deployment, second)
    assert any(second in line and line.startswith("✓") for line in table(notebook, "%gpulayer jobs"))


def test_jobs_of_a_number_and_all_of_them(notebook: Notebook) -> None:
    for _ in range(3):
        notebook.run("%%gpulayer --name counted\n1")
    lines = table(notebook, "%gpulayer jobs -n 2")
    assert [line.split()[2] for line in lines[1:-1]] == ["counted"] * 2
    assert lines[-1] == "the last 2; more with -n N or --all"
    assert len(table(notebook, "%gpulayer jobs --all")) >= 4


def test_fleet_shows_every_machine(notebook: Notebook) -> None:
    lines = table(notebook, "%gpulayer fleet")
    assert {line.split()[1] for line in lines if line.startswith("●")} >= {"alpha", "beta"}
    assert any(line.startswith("    ") and "RAM" in line for line in lines)


def test_a_failed_job_tells_why_in_the_table(notebook: Notebook) -> None:
    notebook.run("%%gpulayer --name wrong\nraise ValueError('bad')")
    lines = table(notebook, "%gpulayer jobs -n 1")
    assert lines[1].startswith("✗")
    assert lines[2].strip() == "ValueError: bad"


# ---------------------------------------------------------------- logs


def test_logs_shows_the_text_so_far_and_comes_back(deployment: Deployment, notebook: Notebook, gate: Path) -> None:
    job = running(deployment, detached(notebook, WAIT.format(go=str(gate))))
    until(lambda: notebook.run(f"%gpulayer logs {job}").text() == "first\n", "the first line")
    gate.touch()
    ended(deployment, job)
    assert notebook.run(f"%gpulayer logs {job}").text() == "first\nlast\n"


def test_logs_of_an_error_raises_nothing_and_shows_results_as_text(notebook: Notebook) -> None:
    notebook.run("%%gpulayer\nimport sys\nprint('err', file=sys.stderr)\ndisplay({'a': 1})\n1 / 0")
    job = table(notebook, "%gpulayer jobs -n 1")[1].split()[1]
    result = notebook.run(f"%gpulayer logs {job}")
    assert result.ok
    assert result.text("stderr") == "err\n"
    assert "{'a': 1}" in result.text()
    assert "ZeroDivisionError" in result.text()
    assert {output["output_type"] for output in result.outputs} == {"stream"}


def test_logs_of_a_job_that_waits_says_so(deployment: Deployment, notebook: Notebook, gate: Path) -> None:
    running(deployment, detached(notebook, WAIT.format(go=str(gate)), "--worker beta"))
    job = detached(notebook, "1", "--worker beta")
    assert notebook.run(f"%gpulayer logs {job}").text().startswith("no text yet · ○ waiting")
    gate.touch()
    ended(deployment, job)
    result = notebook.run(f"%gpulayer logs {job}")
    assert result.text() == "1\n"


def test_logs_of_much_shows_head_and_tail(deployment: Deployment, notebook: Notebook) -> None:
    job = ended(deployment, detached(notebook, "for n in range(100_000):\n    print(n)"))
    text = notebook.run(f"%gpulayer logs {job} --max-output 1kB").text()
    assert text.startswith("0\n1\n")
    assert text.endswith("99999\n")
    assert "left out here" in text
    whole = notebook.run(f"%gpulayer logs {job} --max-output 1MB").text()
    assert whole == "".join(f"{n}\n" for n in range(100_000))


# ---------------------------------------------------------------- attach


def test_attach_to_a_job_of_another_life_of_the_control_plane(plane: Deployment) -> None:
    plane.worker("alpha", warm=0)
    notebook = plane.notebook(FILES, env={"GPULAYER_EMBEDDED": "0"})  # or it would start one of its own in between
    job = ended(plane, detached(notebook, "print('said')\ndisplay('shown')\n42"))
    plane.plane.stop()
    plane.plane.start()
    result = notebook.run(f"%gpulayer attach {job}")
    assert result.text() == "said\n"
    assert result.data("text/plain") == ["'shown'", "42"]
    assert result.status[-1].startswith("✓ done on alpha")
    notebook.close()


def order(cell: Cell) -> list[str]:
    """What a cell's messages add to the page, in order; our line's are told apart, its updates left out.

    Text that comes in parts counts once: when a kernel flushes is its own affair.
    """
    kinds = [
        f"our {kind}" if "gpulayer-status" in json.dumps(content) else kind
        for kind, content in cell
        if kind in ("stream", "display_data", "update_display_data", "clear_output")
    ]
    return [kind for kind, _ in itertools.groupby(kind for kind in kinds if kind != "our update_display_data")]


def test_attach_shows_its_line_above_the_output(deployment: Deployment, notebook: Notebook) -> None:
    job = ended(deployment, detached(notebook, "print('said')"))
    assert order(notebook.start(f"%gpulayer attach {job}")) == ["our display_data", "stream"]


def test_a_cells_line_is_one_display_above_all_of_its_output(notebook: Notebook) -> None:
    kinds = order(notebook.start("%%gpulayer\nprint('a')\ndisplay('b')\nprint('c')"))
    assert kinds == ["our display_data", "stream", "display_data", "stream"]


def test_a_cell_that_clears_its_output_has_its_line_again_above_it(notebook: Notebook) -> None:
    """Before what clears it when that waits, so that nothing flickers."""
    code = "from IPython.display import clear_output\nprint('a')\nclear_output({})\ndisplay('b')"
    for wait in ("wait=True", ""):
        kinds = order(notebook.start(f"%%gpulayer\n{code.format(wait)}"))
        assert kinds == ["our display_data", "stream", "clear_output", "our display_data", "display_data"]


def test_attach_twice_in_a_row_gives_the_same_twice(deployment: Deployment, notebook: Notebook) -> None:
    job = ended(deployment, detached(notebook, "print('said')\n1 / 0"))
    first, second = (notebook.run(f"%gpulayer attach {job}") for _ in range(2))
    assert (first.text(), first.traceback) == (second.text(), second.traceback)
    assert not first.ok


# ---------------------------------------------------------------- sessions


def test_a_session_of_the_whole_notebook(deployment: Deployment, notebook: Notebook) -> None:
    said = notebook.run("%gpulayer session whole --worker alpha --idle-timeout 10min").text()
    assert said == "session whole for all %%gpulayer cells here · on alpha · ends after 10 min without a cell\n"
    notebook.run("%%gpulayer\nx = 41")
    assert notebook.run("%%gpulayer\nx + 1").data("text/plain") == ["42"]
    assert notebook.run("%%gpulayer --session other\n'x' in globals()").data("text/plain") == ["False"]
    [session] = [each for each in deployment.api.sessions() if each.name == "whole"]
    assert (session.worker, session.idle_timeout_s) == ("alpha", 600.0)
    lines = table(notebook, "%gpulayer sessions")
    assert [line.split()[1] for line in lines[1:]] == ["whole", "other"]
    assert any(line.endswith("10 min idle") for line in lines)
    assert notebook.run("%gpulayer session").text() == said
    assert "session whole stays" in notebook.run("%gpulayer session --off").text()
    assert notebook.run("%%gpulayer\n'x' in globals()").data("text/plain") == ["False"]


def test_release_ends_a_session(deployment: Deployment, notebook: Notebook) -> None:
    notebook.run("%%gpulayer --session goes\nx = 1")
    assert notebook.run("%gpulayer release goes").text().startswith("session goes is released")
    until(lambda: not deployment.api.sessions(), "the session's end")
    assert notebook.run("%%gpulayer --session goes\n'x' in globals()").data("text/plain") == ["False"]
    wrong = notebook.run("%gpulayer release gose").traceback
    assert wrong == "gpulayer: no session gose; did you mean goes? open are goes"


def test_an_idle_timeout_of_its_own(deployment: Deployment, notebook: Notebook) -> None:
    notebook.run("%%gpulayer --session short --idle-timeout 90s\n1")
    assert [session.idle_timeout_s for session in deployment.api.sessions()] == [90.0]


# ---------------------------------------------------------------- quiet and named


def test_quiet_leaves_the_status_line_out_and_no_error(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer --quiet\nprint('said')\n1 / 0")
    assert result.status == []
    assert result.text() == "said\n"
    assert (result.error or {})["ename"] == "ZeroDivisionError"
    assert notebook.run("%%gpulayer --quiet --worker nobody\n1").traceback.startswith("gpulayer: no eligible worker")


def test_a_job_has_the_name_it_was_given(deployment: Deployment, notebook: Notebook) -> None:
    notebook.run("%%gpulayer --name 'a sweep'\n1")
    assert deployment.api.jobs(limit=1)[0].name == "a sweep"


# ---------------------------------------------------------------- help and Tab


@pytest.mark.parametrize("line", ["%gpulayer?", "%%gpulayer?", "?%gpulayer"])
def test_a_question_mark_shows_the_help(notebook: Notebook, line: str) -> None:
    [page] = notebook.run(line).reply["payload"]
    text = page["data"]["text/plain"]
    assert "usage: %gpulayer COMMAND" in text
    assert "--accelerator KIND" in text


def test_tab_offers_options_workers_jobs_and_sessions(notebook: Notebook) -> None:
    notebook.run("%%gpulayer --session tabbed --name tab\n1")
    job = table(notebook, "%gpulayer jobs -n 1")[1].split()[1]
    assert notebook.complete("%%gpulayer --acc|\n1") == ["--accelerator"]
    for code, offered in (  # a control plane that is slow to answer is not waited for, and asked again
        ("%%gpulayer --worker a|\n1", "alpha"),
        ("%%gpulayer --session ta|\n1", "tabbed"),
        ("%gpulayer release ta|", "tabbed"),
        ("x = 1\n%gpulayer logs " + job[:3] + "|", job),
    ):
        until(lambda: notebook.complete(code) == [offered], f"{offered} for {code}")  # noqa: B023 - called at once
    until(lambda: job in notebook.complete("%gpulayer attach |"), "the job")


def test_tab_starts_no_control_plane() -> None:
    with Deployment() as bare:
        notebook = bare.notebook(FILES)
        assert notebook.complete("%gpulayer attach |") == ["--help", "--max-output"]
        notebook.complete("%%gpulayer --worker |\n1")
        assert not (bare.data / "endpoint.json").exists()
        notebook.close()
