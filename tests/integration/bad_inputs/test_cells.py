"""What a cell can ask for, or bring along, in vain: one clear line, nothing begun, and the next cell works."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.bad_inputs.conftest import Left
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook, Result


@pytest.fixture(scope="module")
def own_notebook(shared: Deployment) -> Notebook:
    """A notebook whose folder these tests fill."""
    return shared.notebook({"train.py": "LR = 0.1\n"})


@pytest.fixture
def folder(own_notebook: Notebook) -> Iterator[Path]:
    """Its folder, which holds one file afterwards."""
    yield own_notebook.folder
    for path in own_notebook.folder.iterdir():
        if path.name != "train.py":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def refused(result: Result) -> str:
    """The line with which a cell was refused before it was begun."""
    lines = result.traceback.splitlines()
    assert not result.ok
    assert len(lines) == 1, lines
    assert lines[0].startswith("gpulayer: ")
    assert result.text() == ""
    assert result.status == []
    return lines[0]


def works(notebook: Notebook, line: str = "") -> None:
    """A good cell."""
    result = notebook.run(f"%%gpulayer {line}\nimport train\ntrain.LR")
    assert result.data("text/plain") == ["0.1"], (result.traceback, result.status)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--sesion x", "unknown option --sesion; did you mean --session?"),
        ("--max-bundel 1GB", "unknown option --max-bundel; did you mean --max-bundle?"),
        ("train.py", "'train.py' belongs to no option"),
        ("--accelerator gpu", "unknown accelerator 'gpu': cuda, rocm, mps or cpu; did you mean cuda?"),
        ("--accelerator cuda --devices many", "--devices: 'many' is no whole number"),
        ("--session ''", "--session: '' is no name"),
        ("--timeout 0", "--timeout: '0' leaves no time at all"),
    ],
)
def test_an_option(own_notebook: Notebook, left: Left, line: str, said: str) -> None:
    assert said in refused(own_notebook.run(f"%%gpulayer {line}\nprint('never')"))
    left.check()
    works(own_notebook)


NO_CUDA = "needs 1 usable cuda device, worker has 0 (CPU only)"
NO_MPS = "needs 1 usable mps device, worker has 0 (CPU only)"
ELSEWHERE = {
    "a name much like another": (
        "--worker alhpa",
        ["no worker is named 'alhpa'; did you mean alpha?", "nearest: ask for worker alpha"],
    ),
    "a name like none": (
        "--worker gpu-box-1",
        ["no worker is named 'gpu-box-1'"],
    ),
    "an accelerator": ("--accelerator cuda", [f"alpha {NO_CUDA}", f"beta {NO_CUDA}"]),
    "an accelerator on a worker": (
        "--accelerator mps --worker beta",
        [f"beta {NO_MPS}"],
    ),
}


@pytest.mark.parametrize(("line", "said"), ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_a_place_that_is_not_there(own_notebook: Notebook, left: Left, line: str, said: list[str]) -> None:
    result = own_notebook.run(f"%%gpulayer {line}\nprint('never')")
    lines = [" ".join(each.split()) for each in result.traceback.splitlines()]
    assert lines[0] == "gpulayer: no eligible worker"
    assert [each for each in said if each not in lines] == []
    assert result.text() == ""
    assert result.status[-1].startswith("✗ no eligible worker")
    left.check(rejected=True)
    works(own_notebook)


def large(folder: Path) -> None:
    (folder / "model.bin").touch()
    os.truncate(folder / "model.bin", 51_000_000)


def many_large(folder: Path) -> None:
    for number in range(5):
        (folder / f"part-{number}").touch()
        os.truncate(folder / f"part-{number}", 45_000_000)


def up(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "up").symlink_to("..")


def circle(folder: Path) -> None:
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")


BROUGHT: dict[str, tuple[Callable[[Path], object], list[str], str]] = {
    "a large file": (large, ["model.bin (51.0 MB)", "larger than 50.0 MB", "--max-file"], "--exclude model.bin"),
    "too much": (many_large, ["more than 200.0 MB", "part-0 (45.0 MB)", "--max-bundle"], "--exclude 'part-*'"),
    "a secret": (
        lambda folder: (folder / ".env").write_text("TOKEN=1"),
        ["looks like a secret: .env", ".gpulayerignore", "--include .env"],
        "--include .env",
    ),
    "a symlink out of the folder": (
        lambda folder: (folder / "out").symlink_to("/etc/passwd"),
        ["out is a symlink that leaves the source folder (to /etc/passwd)", "--exclude out"],
        "--exclude out",
    ),
    "symlinks in a circle": (
        circle,
        ["is a symlink that runs in a circle", "--exclude"],
        "--exclude one --exclude two",
    ),
    "a symlink to its own folder": (up, ["sub/up is a symlink to a folder that it lies in"], "--exclude sub/up"),
}


@pytest.mark.parametrize(("make", "said", "way_out"), BROUGHT.values(), ids=BROUGHT.keys())
def test_a_folder_that_should_not_travel(
    own_notebook: Notebook, folder: Path, left: Left, make: Callable[[Path], object], said: list[str], way_out: str
) -> None:
    make(folder)
    result = own_notebook.run("%%gpulayer\nprint('never')")
    line = refused(result)
    assert (result.error or {})["ename"] == "SourceRefused"
    assert [each for each in said if each not in line] == []
    left.check()
    works(own_notebook, way_out)  # what the line advises


def test_an_ignored_secret_stays_here_and_nothing_is_said(own_notebook: Notebook, folder: Path) -> None:
    (folder / ".env").write_text("TOKEN=1")
    (folder / ".gitignore").write_text(".env\n")
    result = own_notebook.run("%%gpulayer\nimport os\nos.path.exists('.env')")
    assert result.data("text/plain") == ["False"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere/at/all", "source folder /nowhere/at/all cannot be used: No such file or directory"),
        ("train.py", "source folder train.py is not a folder"),
    ],
)
def test_a_source_that_is_none(own_notebook: Notebook, left: Left, source: str, said: str) -> None:
    assert said in refused(own_notebook.run(f"%%gpulayer --source {source}\nprint('never')"))
    left.check()
    works(own_notebook)


def test_the_home_folder(deployment: Deployment, left: Left) -> None:
    own = str(deployment.folder / f"n{len(deployment.notebooks)}")
    notebook = deployment.notebook({"train.py": "LR = 0.1\n"}, env={"HOME": own})
    line = refused(notebook.run("%%gpulayer\nprint('never')"))
    assert f"the source folder is your home folder {own}, nothing was sent" in line
    assert f"--source {own}" in line
    left.check()
    works(notebook, f"--source {own}")
    notebook.close()
