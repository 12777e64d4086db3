"""`--output GLOB` over real processes: files that a cell made come home, whole, and never over what changed there."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.client.files import Files, FilesRefused, Home
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import JobView, Outcome, State
from gpulayer.source import FileEntry, Manifest, iter_pack
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook, Result
from tests.support.processes import until

MAKE = """\
import os, pathlib
os.makedirs('results/deep', exist_ok=True)
pathlib.Path('results/a.csv').write_text('1,2\\n')
pathlib.Path('results/deep/b.csv').write_text('3,4\\n')
pathlib.Path('results/log.txt').write_text('log')
pathlib.Path('run.sh').write_text('#!/bin/sh\\n')
os.chmod('run.sh', 0o755)
"""


@pytest.fixture
def home(deployment: Deployment) -> Iterator[Notebook]:
    """A notebook of the test's own, in a folder with two files."""
    notebook = deployment.notebook({"train.py": "LR = 1\n", "notes.txt": "mine\n"})
    yield notebook
    notebook.close()


def succeeded(result: Result) -> Result:
    assert result.ok, (result.traceback, result.status)
    return result


def tree(notebook: Notebook) -> dict[str, str]:
    """The folder's files, but what Python leaves; nothing of ours is left over."""
    paths = [path for path in notebook.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert not any(path.name.startswith(".gpulayer") for path in paths), paths
    return {str(path.relative_to(notebook.folder)): path.read_text() for path in paths}


def test_what_matches_comes_home_and_one_line_says_so(home: Notebook) -> None:
    result = succeeded(home.run(f"%%gpulayer --output 'results/**/*.csv' --output run.sh --output '*.pt'\n{MAKE}"))
    assert result.text() == "3 files, 18 B: results/a.csv, results/deep/b.csv, run.sh\n"
    assert result.text("stderr") == "--output *.pt: the cell made and changed no such file\n"
    assert tree(home) == {
        "train.py": "LR = 1\n",
        "notes.txt": "mine\n",
        "results/a.csv": "1,2\n",
        "results/deep/b.csv": "3,4\n",
        "run.sh": "#!/bin/sh\n",
    }
    assert os.access(home.folder / "run.sh", os.X_OK)
    assert "done on" in result.status[-1]


def test_without_output_nothing_comes(home: Notebook) -> None:
    assert succeeded(home.run(f"%%gpulayer\n{MAKE}")).text() == ""
    assert set(tree(home)) == {"train.py", "notes.txt"}


def test_only_what_the_cell_changed(home: Notebook) -> None:
    code = "import pathlib\npathlib.Path('train.py').write_text('LR = 2\\n')"
    result = succeeded(home.run(f"%%gpulayer --output '*.py' --output '*.txt'\n{code};"))
    assert result.text() == "1 file, 7 B: train.py\n"
    assert result.text("stderr") == "--output *.txt: the cell made and changed no such file\n"
    assert tree(home) == {"train.py": "LR = 2\n", "notes.txt": "mine\n"}


def test_in_a_session_only_what_this_cell_made(deployment: Deployment, home: Notebook) -> None:
    write = "import pathlib\n_ = pathlib.Path('{0}').write_text('{0}')"
    succeeded(home.run("%%gpulayer --session out\n" + write.format("one.csv")))
    result = succeeded(home.run("%%gpulayer --session out --output '*.csv'\n" + write.format("two.csv")))
    assert result.text() == "1 file, 7 B: two.csv\n"
    again = succeeded(home.run("%%gpulayer --session out --output '*.csv'\n" + write.format("two.csv")))
    assert again.text() == "here already, the same: two.csv\n"


def test_files_of_a_cell_that_failed_or_was_stopped_come_too(home: Notebook) -> None:
    failed = home.run(f"%%gpulayer --output 'results/' --out never\n{MAKE}\nraise ValueError('after it')")
    assert (failed.error or {})["evalue"] == "after it"
    assert failed.text() == "3 files, 11 B: results/a.csv, results/deep/b.csv, results/log.txt\n"
    code = "open('part.csv', 'w').write('so far')\nprint('go')\nwhile True:\n    pass"
    cell = home.start(f"%%gpulayer --output '*.csv'\n{code}").until_text("go")
    home.interrupt()
    stopped = cell.wait()
    assert (stopped.error or {})["ename"] == "KeyboardInterrupt"
    assert "1 file, 6 B: part.csv" in stopped.text()
    assert tree(home)["part.csv"] == "so far"


def test_files_of_a_kernel_that_died_come_too(deployment: Deployment, home: Notebook) -> None:
    code = "import os\nopen('left.csv', 'w').write('left')\nos.sync()\nos._exit(7)"
    died = home.run(f"%%gpulayer --output '*.csv'\n{code}")
    assert "the kernel exited with code 7" in died.traceback
    assert tree(home)["left.csv"] == "left"
    outcome = deployment.api.jobs(limit=1)[0].outcome
    assert outcome is not None
    assert (outcome.exit_code, outcome.state) == (7, State.FAILED)


def test_what_changed_at_home_meanwhile_is_kept(deployment: Deployment, home: Notebook) -> None:
    cell = home.start("%%gpulayer --detach --output '*.py'\nopen('train.py', 'w').write('LR = 3\\n');")
    [shown] = succeeded(cell.wait()).data("text/plain")
    job = shown.strip("<>").split()[-1]
    (home.folder / "train.py").write_text("edited here\n")
    attached = succeeded(home.run(f"%gpulayer attach {job}"))
    assert attached.text() == f"train.py was changed here meanwhile: kept; the cell's is train.py.from-{job}\n"
    assert tree(home) == {"train.py": "edited here\n", f"train.py.from-{job}": "LR = 3\n", "notes.txt": "mine\n"}
    again = succeeded(home.run(f"%gpulayer attach {job}"))
    assert again.text() == attached.text()
    assert len(tree(home)) == 3


def test_another_notebook_gets_them_by_attach(deployment: Deployment, home: Notebook) -> None:
    succeeded(home.run(f"%%gpulayer --output 'results/'\n{MAKE}"))
    job = deployment.api.jobs(limit=1)[0].id
    other = deployment.notebook({"results/a.csv": "of the other\n"})
    attached = succeeded(other.run(f"%gpulayer attach {job}"))
    assert attached.text().splitlines() == [
        "2 files, 7 B: results/deep/b.csv, results/log.txt",
        f"results/a.csv was changed here meanwhile: kept; the cell's is results/a.csv.from-{job}",
    ]
    assert tree(other) == {
        "results/a.csv": "of the other\n",
        f"results/a.csv.from-{job}": "1,2\n",
        "results/deep/b.csv": "3,4\n",
        "results/log.txt": "log",
    }
    other.close()


def test_no_symlink_is_followed_on_either_side(deployment: Deployment, home: Notebook, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("secret")
    code = f"import os\nos.makedirs('results')\nos.symlink({str(tmp_path / 'secret.csv')!r}, 'results/link.csv')"
    code += "\nopen('results/x.csv', 'w').write('x')\nos.makedirs('folder')\nopen('folder/y.csv', 'w').write('y');"
    (home.folder / "results").symlink_to(tmp_path)
    result = home.run(f"%%gpulayer --exclude results --output '*.csv'\n{code}")
    assert succeeded(result).text() == "1 file, 1 B: folder/y.csv\n"
    assert result.text("stderr") == "results/x.csv was not fetched: results is no folder of its own here\n"
    assert sorted(os.listdir(tmp_path)) == ["secret.csv"]


def test_a_manifest_that_leads_out_of_the_folder_writes_nothing(plane: Deployment, tmp_path: Path) -> None:
    """What a worker that is not to be trusted could leave with the control plane."""
    entry = FileEntry(path="../evil", mode=0o644, size=4, sha256=hashlib.sha256(b"evil").hexdigest())
    evil = Manifest.trusted([entry]).to_bytes()
    pack = b"".join(iter_pack([(hashlib.sha256(data).hexdigest(), data) for data in (evil, b"evil")]))
    assert plane.request("POST", "/v1/blobs", content=pack).json() == {"stored": 2}

    class Tie:
        endpoint: Endpoint | None = plane.plane.endpoint

    outcome = Outcome(state=State.SUCCEEDED, files=hashlib.sha256(evil).hexdigest())
    job = JobView(id="k3f9", state=State.SUCCEEDED, outcome=outcome)
    (tmp_path / "home").mkdir()
    with pytest.raises(FilesRefused, match=r"the files of job k3f9 can't be taken: .*\.\./evil"):
        Files().fetch(job, Home(root=tmp_path / "home"), Tie(), lambda line: None)
    assert [str(path.name) for path in tmp_path.rglob("*")] == ["home"]


# ---------------------------------------------------------------- kills


@pytest.fixture(scope="module")
def broken() -> Iterator[Deployment]:
    with Deployment(failpoints=True, env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start()
        deployment.worker("alpha", slots=2)
        deployment.notebook()
        yield deployment


CELL = """%%gpulayer --output 'out/'
import os
os.makedirs('out', exist_ok=True)
for n in range(4):
    _ = open(f'out/{n}.bin', 'wb').write(os.urandom(3_000_000))
print('once')
"""


def holds(deployment: Deployment, result: Result) -> None:
    """The cell ran once, and its files are here."""
    succeeded(result)
    once, line = result.text().splitlines()
    assert once == "once"
    assert line == "4 files, 12.0 MB: out/0.bin, out/1.bin, out/2.bin …"
    folder = deployment.notebooks[0].folder / "out"
    assert sorted(path.name for path in folder.iterdir()) == [f"{n}.bin" for n in range(4)]
    assert {path.stat().st_size for path in folder.iterdir()} == {3_000_000}
    assert deployment.api.jobs(limit=1)[0].attempts == 1


@pytest.mark.parametrize("victim", ["agent", "control plane"])
@pytest.mark.parametrize("step", ["agent.idle-written", "agent.mid-upload", "agent.mid-delivery"])
def test_whoever_dies_no_file_is_lost(broken: Deployment, victim: str, step: str) -> None:
    with broken.failpoint(step) as point:
        cell = broken.notebooks[0].start(CELL)
        point.await_hit()
        if victim == "agent":
            broken.workers["alpha"].kill_agent()
        else:
            broken.plane.kill()
            broken.plane.start()
    holds(broken, cell.wait())
    until(lambda: broken.slots_free("alpha") == 2, "the slot")


def test_while_the_control_plane_is_away_the_files_wait(broken: Deployment) -> None:
    with broken.failpoint("agent.mid-upload") as point:
        cell = broken.notebooks[0].start(CELL)
        point.await_hit()
        broken.plane.kill()
    until(lambda: "could not be sent" in broken.workers["alpha"].log, "a try that fails")
    broken.plane.start()
    holds(broken, cell.wait())


def test_an_upload_that_is_refused_for_good_fails_the_job_and_keeps_the_programs_end(broken: Deployment) -> None:
    notebook = broken.notebooks[0]
    code = "open('a\\\\b.bin', 'wb').write(b'x')\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    failed = notebook.run(f"%%gpulayer --output '*.bin'\n{code}")
    assert "upload failed: " in failed.traceback
    job = broken.api.jobs(limit=1)[0]
    assert job.outcome is not None
    assert (job.state, job.outcome.signal) == (State.FAILED, signal.SIGKILL)
    assert "signal 9" in job.outcome.problem
    assert "holds neither NUL nor backslash" in job.outcome.problem
    assert job.outcome.files == ""
