"""Files on their way from home into a workspace: real control plane, real worker, real disks."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.notebook.folder import Source
from gpulayer.source.blobs import Blobs
from gpulayer_worker.workspace import Workspaces
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook

ODD = {
    b"with space.txt": b"space",
    b"-rf": b"dash",
    b"new\nline.txt": b"newline",
    "naïve 日本.txt".encode(): b"utf-8",
    b"latin-\xe9.txt": b"not utf-8",
    b"'quoted\"$HOME`.txt": b"quotes",
    b"empty.txt": b"",
    b".hidden": b"hidden",
    b"deep/er/and deeper/x.py": b"X = 1\n",
    b"run.sh": b"#!/bin/sh\n",
}
LIST = """
import os
for folder, folders, files in sorted(os.walk(b".")):
    for name in sorted(files):
        path = os.path.relpath(os.path.join(folder, name), b".")
        print(repr((path, open(path, "rb").read(), oct(os.stat(path).st_mode & 0o777))))
    if not files and not folders:
        print(repr((os.path.relpath(folder, b"."), None, "")))
"""


# ---------------------------------------------------------------- names and modes


@pytest.fixture(scope="module")
def odd_notebook(shared: Deployment) -> Notebook:
    """A notebook among files of odd names, and an empty folder."""
    notebook = shared.notebook()
    root = os.fsencode(notebook.folder)
    for name, content in ODD.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    os.chmod(os.path.join(root, b"run.sh"), 0o750)
    os.chmod(os.path.join(root, b".hidden"), 0o600)
    os.makedirs(os.path.join(root, b"an empty/fold\ner"))
    return notebook


@pytest.mark.parametrize("options", ["", "--session odd-names"], ids=["fresh", "kept"])
def test_names_contents_modes_and_empty_folders_arrive(
    deployment: Deployment, odd_notebook: Notebook, options: str
) -> None:
    cell = odd_notebook.run(f"%%gpulayer {options}\n{LIST}")
    assert cell.ok, cell.traceback
    wanted = {repr((name, content, "0o755" if name == b"run.sh" else "0o644")) for name, content in ODD.items()}
    wanted.add(repr((b"an empty/fold\ner", None, "")))
    assert set(cell.text().splitlines()) == wanted


# ---------------------------------------------------------------- kept workspaces


class Kept:
    """A session, and what its workspace looks like from inside."""

    def __init__(self, notebook: Notebook, name: str):
        self.notebook = notebook
        self.folder = notebook.folder
        self._magic = f"%%gpulayer --session {name}\n"

    def run(self, code: str) -> str:
        """Run there; what it printed. Fails where the cell fails."""
        cell = self.notebook.run(self._magic + code)
        assert cell.ok, cell.traceback
        return cell.text()

    def refused(self, code: str) -> str:
        """What a cell that does not run says."""
        cell = self.notebook.run(self._magic + code)
        assert not cell.ok
        return cell.traceback

    def stamps(self) -> dict[str, str]:
        """Inode, mtime and ctime of each file there."""
        lines = self.run(
            "import os\n"
            "for folder, _, files in os.walk('.'):\n"
            "    for name in files:\n"
            "        s = os.stat(os.path.join(folder, name))\n"
            "        print(os.path.join(folder, name)[2:], s.st_ino, s.st_mtime_ns, s.st_ctime_ns)\n"
        )
        return dict(line.split(" ", 1) for line in lines.splitlines())


@pytest.fixture(scope="module")
def kept_notebook(shared: Deployment) -> Notebook:
    """A notebook beside files that the tests change."""
    return shared.notebook()


@pytest.fixture
def kept(deployment: Deployment, kept_notebook: Notebook, request: pytest.FixtureRequest) -> Iterator[Kept]:
    """A session of the test's own, beside these files."""
    for number in range(40):
        path = kept_notebook.folder / f"p{number % 4}" / f"m{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"VALUE = {number}\n")
    yield Kept(kept_notebook, request.node.name[5:40])
    for path in kept_notebook.folder.glob("p*"):
        shutil.rmtree(path)


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_only_what_changed_at_home_is_touched(kept: Kept) -> None:
    before = kept.stamps()
    assert len(before) == 40
    (kept.folder / "p1" / "m5.py").write_text("VALUE = 'changed'\n")
    (kept.folder / "p2" / "new.py").write_text("NEW = 1\n")
    (kept.folder / "p3" / "m7.py").unlink()
    (kept.folder / "p0" / "m8.py").rename(kept.folder / "p0" / "moved.py")
    os.utime(kept.folder / "p0" / "m4.py")  # touched, not changed
    after = kept.stamps()
    assert changed(before, after) == {"p1/m5.py", "p2/new.py", "p3/m7.py", "p0/m8.py", "p0/moved.py"}
    assert {"p3/m7.py", "p0/m8.py"}.isdisjoint(after)
    assert kept.run("print(open('p1/m5.py').read(), open('p0/moved.py').read())") == "VALUE = 'changed'\n VALUE = 8\n\n"


def test_a_folder_that_went_at_home_goes_and_what_a_cell_made_in_it_stays(kept: Kept) -> None:
    kept.run("open('p3/made.txt', 'w').write('mine')")
    for folder in ("p2", "p3"):
        shutil.rmtree(kept.folder / folder)
    assert {name.partition("/")[0] for name in kept.stamps()} == {"p0", "p1", "p3"}
    assert kept.run("import os\nprint(os.listdir('p3'), os.path.exists('p2'))") == "['made.txt'] False\n"


def test_a_file_changed_on_both_sides_stops_the_cell_before_any_file_is_touched(kept: Kept) -> None:
    kept.run("open('p0/m0.py', 'w').write('there')")
    before = kept.stamps()
    (kept.folder / "p0" / "m0.py").write_text("home")
    (kept.folder / "p1" / "m1.py").write_text("home too")
    (kept.folder / "p1" / "m9.py").unlink()
    said = kept.refused("ran = True")
    assert "changed here and in the session's workspace too: p0/m0.py; " in said
    (kept.folder / "p0" / "m0.py").write_text("VALUE = 0\n")
    after = kept.stamps()
    assert changed(before, after) == {"p1/m1.py", "p1/m9.py"}
    assert kept.run("print('ran' in globals(), open('p0/m0.py').read())") == "False there\n"


def test_a_mode_arrives_without_the_file_being_written(kept: Kept) -> None:
    inode = "import os\nprint(os.stat('p0/m0.py').st_ino, oct(os.stat('p0/m0.py').st_mode & 0o777))"
    before = kept.run(inode).split()
    (kept.folder / "p0" / "m0.py").chmod(0o755)
    after = kept.run(inode).split()
    assert (before[1], after[1]) == ("0o644", "0o755")
    assert before[0] == after[0]


# ---------------------------------------------------------------- much of it


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A notebook's side."""
    return Source(tmp_path / "client")


@pytest.fixture
def roomy() -> Iterator[Path]:
    """A folder in memory, where there is one: making 100,000 files takes minutes on some disks."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="gpulayer-", dir=memory if os.access(memory, os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(300)
def test_50_000_small_files_arrive(plane: Deployment, source: Source, roomy: Path) -> None:
    home = roomy / "home"
    for number in range(50_000):
        if number % 500 == 0:
            (home / f"p{number // 500:03d}").mkdir(parents=True)
        (home / f"p{number // 500:03d}" / f"{number}.txt").write_bytes(b"%d\n" % number)
    workspaces = Workspaces(Blobs(roomy / "blobs"), lambda: plane.plane.endpoint)
    bundle = source.scan(str(home))
    assert len(bundle.manifest) == 50_000
    source.send(bundle, plane.plane.endpoint, lambda text: None)
    workspaces.update(bundle.manifest.digest, roomy / "w", roomy / "w.json", lambda text: None)
    assert sum(len(files) for _, _, files in os.walk(roomy / "w")) == 50_000

    (home / "p042" / "21000.txt").write_text("changed")
    told: list[str] = []
    again = source.scan(str(home))
    source.send(again, plane.plane.endpoint, told.append)
    workspaces.update(again.manifest.digest, roomy / "w", roomy / "w.json", told.append)
    assert told == ["◐ sending 1 of 50000 files", "fetching 1 file"]
    assert [(roomy / "w" / "p042" / f"{name}.txt").read_text() for name in (21000, 21001)] == ["changed", "21001\n"]


_LARGE = """
import resource, sys
from pathlib import Path
from gpulayer.notebook.folder import Source
from gpulayer.protocol.endpoint import read_endpoint
from gpulayer.source import Limits
from gpulayer.source.blobs import Blobs
from gpulayer_worker.workspace import Workspaces
import httpx, zstandard

data, home, room = map(Path, sys.argv[1:])
endpoint = read_endpoint(data)
source = Source(room / "client")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bundle = source.scan(str(home), limits=Limits(bundle_bytes=10**9, file_bytes=10**9))
source.send(bundle, endpoint, lambda text: None)
Workspaces(Blobs(room / "blobs"), lambda: endpoint).fresh(bundle.manifest.digest, room / "w", lambda text: None)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts in kilobytes on Linux, and VmHWM is there")
def test_contents_are_never_held(plane: Deployment, roomy: Path) -> None:
    """400 MB pass a client, a control plane and a worker; none of them grows by a sixth of that."""
    home = roomy / "home"
    home.mkdir()
    for number in range(4):
        with (home / f"{number}.bin").open("wb") as file:
            file.write(b"%d" % number)
            file.truncate(100_000_000)
    before = peak_kb(plane.plane.pid)
    script = [sys.executable, "-c", _LARGE, str(plane.data), str(home), str(roomy)]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=plane.env, timeout=100)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64_000
    assert peak_kb(plane.plane.pid) - before < 64_000
    assert stat.S_ISREG((roomy / "w" / "3.bin").stat().st_mode)
    assert (roomy / "w" / "3.bin").stat().st_size == 100_000_000


def peak_kb(pid: int) -> int:
    """The most memory that a process ever held, in kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
