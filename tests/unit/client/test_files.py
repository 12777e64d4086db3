"""Files that a cell made, into the notebook's folder and nowhere else."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpulayer.client import transfer
from gpulayer.client.asks import Output
from gpulayer.client.errors import ControlPlaneError
from gpulayer.client.files import Came, Files, FilesRefused, Home
from gpulayer.protocol.types import JobView, Outcome, State
from gpulayer.source import FileEntry, Manifest
from tests.support.blobhost import BlobHost

LATER_NS = 3_600_000_000_000


def quiet(line: str) -> None:
    """Nobody looks."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> BlobHost:
    monkeypatch.setattr(transfer, "PAUSES_S", (0.01, 0.01))
    return BlobHost().serve(monkeypatch, "gpulayer.client.transfer")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def manifest_of(files: dict[str, bytes], *, mode: int = 0o644) -> Manifest:
    return Manifest(
        FileEntry(path=path, mode=mode, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for path, data in files.items()
    )


def job_with(host: BlobHost, files: dict[str, bytes], *, mode: int = 0o644) -> JobView:
    for data in files.values():
        host.put(data)
    digest = host.put(manifest_of(files, mode=mode).to_bytes()) if files else ""
    return JobView(id="k3f9", state=State.SUCCEEDED, outcome=Outcome(state=State.SUCCEEDED, files=digest))


def home(root: Path, sent: dict[str, bytes] | None = None, *globs: str, ago_ns: int = 0) -> Home:
    manifest = manifest_of(sent) if sent is not None else None
    return Home(root=root, sent=manifest, sent_at_ns=time.time_ns() - ago_ns, globs=globs or None)


def fetched(host: BlobHost, files: dict[str, bytes], where: Home) -> Came:
    return Files().fetch(job_with(host, files), where, host.tie, quiet)


def tree(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert not any(".gpulayer" in path for path in os.listdir(folder))  # nothing of ours is left
    return found


def test_new_files_are_written_and_named(host: BlobHost, root: Path) -> None:
    files = {f"results/deep/{name}.csv": name.encode() * 300_000 for name in "abcd"}
    came = fetched(host, files, home(root, {}))
    assert tree(root) == files
    assert came.lines() == ["4 files, 1.2 MB: results/deep/a.csv, results/deep/b.csv, results/deep/c.csv …"]
    assert came.warnings() == []


def test_one_file_of_many_names_is_fetched_once(host: BlobHost, root: Path) -> None:
    files: dict[str, bytes] = dict.fromkeys(["a", "b", "x/c"], b"same" * 1000)
    assert len(fetched(host, files, home(root, {})).written) == 3
    assert tree(root) == files
    assert os.stat(root / "a").st_nlink == 1


def test_the_executable_bit_comes_and_the_umask_holds(host: BlobHost, root: Path) -> None:
    before = os.umask(0o027)
    try:
        Files().fetch(job_with(host, {"run.sh": b"#!"}, mode=0o755), home(root, {}), host.tie, quiet)
        fetched(host, {"plain.txt": b"x"}, home(root, {}))
    finally:
        os.umask(before)
    assert (root / "run.sh").stat().st_mode & 0o777 == 0o750
    assert (root / "plain.txt").stat().st_mode & 0o777 == 0o640


def test_what_is_as_it_was_sent_is_replaced(host: BlobHost, root: Path) -> None:
    (root / "a.csv").write_bytes(b"old")
    came = fetched(host, {"a.csv": b"new"}, home(root, {"a.csv": b"old"}, ago_ns=LATER_NS))
    assert tree(root) == {"a.csv": b"new"}
    assert came.lines() == ["1 file, 3 B: a.csv"]


def test_what_changed_meanwhile_stays_and_the_new_one_is_beside_it(host: BlobHost, root: Path) -> None:
    (root / "a.csv").write_bytes(b"mine")
    came = fetched(host, {"a.csv": b"new"}, home(root, {"a.csv": b"old"}))
    assert tree(root) == {"a.csv": b"mine", "a.csv.from-k3f9": b"new"}
    assert came.lines() == ["a.csv was changed here meanwhile: kept; the cell's is a.csv.from-k3f9"]
    again = fetched(host, {"a.csv": b"new"}, home(root, {"a.csv": b"old"}))
    assert tree(root) == {"a.csv": b"mine", "a.csv.from-k3f9": b"new"}
    assert again.beside == [("a.csv", "a.csv.from-k3f9")]
    (root / "a.csv.from-k3f9").write_bytes(b"mine too")
    fetched(host, {"a.csv": b"new"}, home(root, {"a.csv": b"old"}))
    assert tree(root) == {"a.csv": b"mine", "a.csv.from-k3f9": b"mine too", "a.csv.from-k3f9-2": b"new"}


@pytest.mark.parametrize(
    ("name", "ago_ns", "replaced"),
    [("a.csv", -LATER_NS, True), ("a.csv", LATER_NS, False), ("a.ipynb", -LATER_NS, False)],
)
def test_what_was_not_sent_is_replaced_if_it_is_older_than_the_cell(
    host: BlobHost, root: Path, name: str, ago_ns: int, replaced: bool
) -> None:
    (root / name).write_bytes(b"of an earlier run")
    came = fetched(host, {name: b"new"}, home(root, {}, ago_ns=ago_ns))
    assert (root / name).read_bytes() == (b"new" if replaced else b"of an earlier run")
    assert bool(came.beside) is not replaced


def test_what_we_wrote_is_replaced_unless_somebody_changed_it(host: BlobHost, root: Path) -> None:
    files = Files()
    where = home(root, {}, ago_ns=LATER_NS)
    for data in (b"one", b"two", b"three"):
        files.fetch(job_with(host, {"a.csv": data}), where, host.tie, quiet)
    assert tree(root) == {"a.csv": b"three"}
    (root / "a.csv").write_bytes(b"mine")
    came = files.fetch(job_with(host, {"a.csv": b"four"}), where, host.tie, quiet)
    assert came.beside
    assert (root / "a.csv").read_bytes() == b"mine"


def test_for_another_kernels_job_nothing_is_replaced(host: BlobHost, root: Path) -> None:
    (root / "a.csv").write_bytes(b"whose")
    fetched(host, {"a.csv": b"new", "b.csv": b"b"}, Home(root=root))
    assert tree(root) == {"a.csv": b"whose", "a.csv.from-k3f9": b"new", "b.csv": b"b"}


def test_what_is_here_already_is_not_fetched(host: BlobHost, root: Path) -> None:
    (root / "a.csv").write_bytes(b"same")
    stamp = (root / "a.csv").stat().st_mtime_ns
    came = fetched(host, {"a.csv": b"same"}, home(root, {}))
    assert came.lines() == ["here already, the same: a.csv"]
    assert (root / "a.csv").stat().st_mtime_ns == stamp
    assert not any("fetch" in asked for asked in host.asked)


def test_a_symlink_is_neither_followed_nor_replaced(host: BlobHost, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.csv").write_bytes(b"secret")
    (root / "folder").symlink_to(outside)
    (root / "file.csv").symlink_to(outside / "secret.csv")
    (root / "notes").write_bytes(b"a file where a folder should be")
    files = {
        "folder/secret.csv": b"bad",
        "folder/new.csv": b"bad",
        "file.csv": b"bad",
        "notes/x.csv": b"bad",
        "b": b"b",
    }
    came = fetched(host, files, home(root, {}))
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == {"secret.csv": b"secret"}
    assert (root / "file.csv").is_symlink()
    assert (root / "file.csv.from-k3f9").read_bytes() == b"bad"
    assert sorted(came.refused) == [
        ("folder/new.csv", "folder is no folder of its own here"),
        ("folder/secret.csv", "folder is no folder of its own here"),
        ("notes/x.csv", "notes is no folder of its own here"),
    ]
    assert came.written == [("b", 1)]


@pytest.mark.parametrize("path", ["../evil", "/tmp/evil", "a/../../evil", "..", "a//b", "./a", "a\\..\\b", "a\0b", ""])
def test_a_manifest_that_leads_out_is_refused_whole(host: BlobHost, root: Path, path: str) -> None:
    entries = [
        FileEntry(path=name, mode=0o644, size=4, sha256=hashlib.sha256(b"evil").hexdigest()) for name in ("a.csv", path)
    ]
    evil = host.put(Manifest.trusted(entries).to_bytes())
    host.put(b"evil")
    job = JobView(id="k3f9", state=State.SUCCEEDED, outcome=Outcome(state=State.SUCCEEDED, files=evil))
    with pytest.raises(FilesRefused, match=r"the files of job k3f9 can't be taken: manifest entry .*path"):
        Files().fetch(job, home(root, {}), host.tie, quiet)
    assert tree(root.parent) == {}


def test_nothing_comes_that_nobody_asked_for(host: BlobHost, root: Path) -> None:
    files = {"a.csv": b"a", "train.py": b"evil", ".git/hooks/pre-commit": b"evil"}
    came = fetched(host, files, home(root, {}, "*.csv", "*.pt"))
    assert tree(root) == {"a.csv": b"a"}
    assert came.warnings() == [
        ".git/hooks/pre-commit was not fetched: no --output asked for it",
        "train.py was not fetched: no --output asked for it",
        "--output *.pt: the cell made and changed no such file",
    ]
    assert fetched(host, {".git/hooks/x": b"evil"}, Home(root=root)).refused == [
        (".git/hooks/x", "nothing is written there")
    ]


def test_no_files_at_all_are_a_warning_for_each_glob(host: BlobHost, root: Path) -> None:
    came = fetched(host, {}, home(root, {}, "*.csv", "*.pt"))
    assert came.lines() == []
    assert came.warnings() == [
        "--output *.csv: the cell made and changed no such file",
        "--output *.pt: the cell made and changed no such file",
    ]


def test_a_break_fetches_the_rest(host: BlobHost, root: Path) -> None:
    host.break_next = [httpx.ReadError("reset"), httpx.Response(503)]
    told: list[str] = []
    Files().fetch(job_with(host, {"a": b"a", "b": b"b"}), home(root, {}), host.tie, told.append)
    assert tree(root) == {"a": b"a", "b": b"b"}
    assert any("went away while the files were fetched (reset); trying again" in line for line in told)
    assert "◐ fetching 2 files, 2 B" in told


def test_one_that_stays_away_says_how_to_get_them_later(host: BlobHost, root: Path) -> None:
    host.break_next = [httpx.ConnectError("refused")] * 3
    with pytest.raises(ControlPlaneError, match=r"; %gpulayer attach k3f9 fetches them$"):
        fetched(host, {"a": b"a"}, home(root, {}))
    assert tree(root) == {}


def test_a_folder_that_can_not_be_written_is_told(host: BlobHost, root: Path) -> None:
    root.rmdir()
    with pytest.raises(FilesRefused, match=r"can't be written here: .*; then %gpulayer attach k3f9 fetches them"):
        fetched(host, {"a": b"a"}, home(root, {}))


def test_what_changes_while_it_is_fetched_stays(host: BlobHost, root: Path) -> None:
    (root / "a.csv").write_bytes(b"old")

    def tell(line: str) -> None:
        if "fetching 1 file" in line:
            (root / "a.csv").write_bytes(b"just edited")

    job: Any = job_with(host, {"a.csv": b"new"})
    came = Files().fetch(job, home(root, {"a.csv": b"old"}, ago_ns=LATER_NS), host.tie, tell)
    assert tree(root) == {"a.csv": b"just edited", "a.csv.from-k3f9": b"new"}
    assert came.beside


# ---------------------------------------------------------------- of a command


def outputs_of(host: BlobHost, files: dict[str, bytes], index: int = 0) -> list[Output]:
    return [Output(index=index, path=path, size=len(data), sha256=host.put(data)) for path, data in files.items()]


def test_a_commands_machine_brings_only_what_was_asked_for(host: BlobHost, root: Path) -> None:
    """It can't put other files into the folder that the job was sent from, least of all in place of its source."""
    (root / "train.py").write_bytes(b"ours")
    outputs = outputs_of(host, {"out/a": b"a", "train.py": b"theirs", ".git/hooks/x": b"", "out/.git/config": b"x"})
    where = home(root, {"train.py": b"ours"}, "out/**", "log")
    came = Files().fetch_outputs(JobView(id="k3f9", state=State.SUCCEEDED), outputs, where, host.tie, quiet)
    assert tree(root) == {"train.py": b"ours", "out/a": b"a"}
    assert came.written == [("out/a", 1)]
    assert came.refused == [
        ("out/.git/config", "nothing is written there"),
        ("train.py", "no --output asked for it"),
        (".git/hooks/x", "no --output asked for it"),
    ]
    assert came.unmatched == ["log"]


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a/../../x", "a//x", "", ".", "a\0b"])
def test_a_commands_file_that_leads_out_is_refused(host: BlobHost, root: Path, path: str) -> None:
    job = JobView(id="k3f9", state=State.SUCCEEDED, tasks={"succeeded": 2})
    outputs = [*outputs_of(host, {"good": b"x"}), *outputs_of(host, {path: b"x"}, 1)]
    with pytest.raises(FilesRefused, match="the files of job k3f9 can't be taken"):
        Files().fetch_outputs(job, outputs, Home(root=root), host.tie, quiet)
    assert tree(root.parent) == {}


def test_of_an_array_each_tasks_files_have_their_folder(host: BlobHost, root: Path) -> None:
    job = JobView(id="k3f9", state=State.SUCCEEDED, tasks={"succeeded": 2})
    outputs = [*outputs_of(host, {"a": b"0", "b": b""}), *outputs_of(host, {"a": b"1"}, 1)]
    came = Files().fetch_outputs(job, outputs, home(root, {}, "a"), host.tie, quiet)
    assert tree(root) == {"k3f9/0/a": b"0", "k3f9/1/a": b"1"}
    assert came.refused == [("k3f9/0/b", "no --output asked for it")]


def test_a_place_that_is_no_folder_is_named(host: BlobHost, root: Path) -> None:
    (root / "file").touch()
    where = Home(root=root / "file")
    outputs = outputs_of(host, {"a": b"0"})
    with pytest.raises(FilesRefused, match=r"can't be written here: .*/file: File exists; then gpulayer job download"):
        Files().fetch_outputs(JobView(id="k3f9", state=State.SUCCEEDED), outputs, where, host.tie, quiet)
