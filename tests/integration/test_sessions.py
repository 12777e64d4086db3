"""Sessions: a kernel kept between cells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook, Result
from tests.support.processes import until


class Session:
    """A session's name, and a notebook that uses it."""

    def __init__(self, deployment: Deployment, notebook: Notebook, name: str):
        self.deployment = deployment
        self.notebook = notebook
        self.name = name

    def run(self, code: str, options: str = "") -> Result:
        return self.notebook.run(f"%%gpulayer --session {self.name} {options}\n{code}")

    def value(self, expression: str) -> str:
        return self.run(expression).data("text/plain")[0]

    def release(self) -> None:
        assert self.deployment.request("DELETE", f"/v1/sessions/{self.name}").status_code == 204
        until(lambda: not self.open, "the session's end")

    @property
    def open(self) -> bool:
        return any(session.name == self.name for session in self.deployment.api.sessions())


@pytest.fixture
def session(deployment: Deployment, notebook: Notebook, request: pytest.FixtureRequest) -> Session:
    """A session of the test's own, in the shared notebook."""
    return Session(deployment, notebook, request.node.name[5:30])


@pytest.fixture(scope="module")
def own_notebook(shared: Deployment) -> Notebook:
    """A notebook whose folder the tests of this module change."""
    return shared.notebook({"train.py": "LR = 1\n"})


@pytest.fixture
def edited(deployment: Deployment, own_notebook: Notebook, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session in a notebook whose folder is the test's to change."""
    yield Session(deployment, own_notebook, request.node.name[5:30])
    (own_notebook.folder / "train.py").write_text("LR = 1\n")


def test_a_session_keeps_its_state(session: Session) -> None:
    session.run("x = 41")
    assert session.value("x + 1") == "42"


def test_two_sessions_are_apart(session: Session) -> None:
    other = Session(session.deployment, session.notebook, "another")
    session.run("x = 'mine'")
    other.run("x = 'other'")
    assert (session.value("x"), other.value("x")) == ("'mine'", "'other'")


def test_an_error_leaves_the_session_as_it_was(session: Session) -> None:
    session.run("x = 1")
    failed = session.run("x = 2\n1 / 0")
    assert f"Cell In[{failed.execution_count}], line 3" in failed.traceback
    assert session.value("x") == "2"


def test_stop_leaves_the_session_as_it_was(session: Session) -> None:
    session.run("x = 1")
    cell = session.notebook.start(f"%%gpulayer --session {session.name}\nprint('go')\nwhile True:\n    pass")
    cell.until_text("go")
    session.notebook.interrupt()
    assert (cell.wait().error or {})["ename"] == "KeyboardInterrupt"
    assert session.value("x") == "1"


def test_a_changed_module_reaches_the_session_and_what_the_cell_made_stays(edited: Session) -> None:
    edited.run("import train, importlib\nopen('made.txt', 'w').write('here')\nfirst = train.LR")
    (edited.notebook.folder / "train.py").write_text("LR = 22\n")
    assert edited.value("importlib.reload(train)\nfirst, train.LR, open('made.txt').read()") == "(1, 22, 'here')"


def test_only_a_new_file_is_written(edited: Session) -> None:
    edited.run("import os\ndef when():\n    s = os.stat('train.py')\n    return s.st_ino, s.st_mtime_ns\nwas = when()")
    (edited.notebook.folder / "new.py").write_text("NEW = 1\n")
    try:
        assert edited.value("import new\nwas == when()") == "True"
    finally:
        (edited.notebook.folder / "new.py").unlink()


def test_a_file_changed_on_both_sides_is_named_and_nothing_runs(edited: Session) -> None:
    edited.run("ran = 1\nopen('train.py', 'a').write('# there')")
    (edited.notebook.folder / "train.py").write_text("LR = 3\n")
    refused = edited.run("ran = 2")
    assert "changed here and in the session's workspace too: train.py" in refused.traceback
    (edited.notebook.folder / "train.py").write_text("LR = 1\n")
    assert edited.value("ran, open('train.py').read()") == "(1, 'LR = 1\\n# there')"


def test_after_its_kernels_death_the_next_cell_says_that_state_is_fresh(session: Session) -> None:
    session.run("x = 1")
    died = session.run("import os\nos._exit(9)")
    assert "the kernel exited with code 9" in died.traceback
    fresh = session.run("'x' in globals()")
    assert fresh.data("text/plain") == ["False"]
    assert f"session '{session.name}' had ended (its kernel died): its state is fresh" in fresh.status[-1]
    again = session.run("1")
    assert "had ended" not in again.status[-1]


def test_release_frees_the_slot(session: Session) -> None:
    session.run("x = 1")
    assert session.deployment.slots_free("alpha") == 3
    session.release()
    assert session.deployment.slots_free("alpha") == 4
    fresh = session.run("'x' in globals()")
    assert fresh.data("text/plain") == ["False"]
    assert "had ended" not in fresh.status[-1]  # whoever released it knows


def test_release_of_an_unknown_session_is_a_problem(deployment: Deployment) -> None:
    answer = deployment.request("DELETE", "/v1/sessions/nobody")
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_session")
    assert "nobody" in answer.json()["title"]


def test_an_idle_session_ends_by_itself_and_the_next_cell_says_why(session: Session) -> None:
    spec = {"cell": {"code": "x = 1", "session": session.name, "idle_timeout_s": 0.5}}
    job = session.deployment.request("POST", "/v1/jobs", json={"key": session.name, "spec": spec}).json()
    until(lambda: session.deployment.api.job(job["id"]).state is State.SUCCEEDED, "the cell's end")
    until(lambda: not session.open, "the session's end")
    assert session.deployment.slots_free("alpha") == 4
    assert f"session '{session.name}' had ended (idle for" in session.run("1").status[-1]


def test_cells_of_a_session_run_one_after_the_other(session: Session) -> None:
    session.run("import time\nlog = []")
    for name in ("a", "b", "c"):
        session.run(f"log.append('{name}')\ntime.sleep(0.1)\nlog.append('{name}')", "--detach")
    assert session.value("log") == "['a', 'a', 'b', 'b', 'c', 'c']"


def test_a_session_stays_where_it_is(session: Session) -> None:
    session.run("x = 1")
    elsewhere = session.run("x", "--worker beta")
    assert "no eligible worker" in elsewhere.traceback
    assert f"session '{session.name}' lives on alpha" in elsewhere.traceback
    assert session.value("x") == "1"


def test_a_daemon_of_a_session_lives_as_long_as_the_session(session: Session) -> None:
    code = "import subprocess\np = subprocess.Popen(['sleep', '86398'], start_new_session=True)\nprint(p.pid)"
    pid = int(session.run(code).text())
    session.run("1")
    assert pid in session.deployment.processes()
    session.release()
    assert pid not in session.deployment.processes()
