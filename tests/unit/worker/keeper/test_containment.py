"""Choosing how groups are held together, and the little that is asked of cgroups."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from gpulayer_worker.keeper import containment
from gpulayer_worker.keeper.containment import (
    Containment,
    ContainmentError,
    cgroup_pids,
    decide,
    kill_cgroup,
    oom_kills,
    own_cgroup,
    parse_mount,
    remove_cgroup,
)

UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / {mount} rw - cgroup2 cgroup2 rw\n"
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /proc and /sys."""
    for name in ("MOUNTINFO", "OWN_CGROUP", "VMSTAT"):
        monkeypatch.setattr(containment, name, str(tmp_path / name.lower()))
    return tmp_path


def test_only_cgroup2_mounts_count() -> None:
    assert parse_mount(UNIFIED) == ("/", "/sys/fs/cgroup")
    lines = HYBRID.format(mount="/sys/fs/cgroup/uni\\040fied").splitlines()
    assert [parse_mount(line) for line in lines] == [None, None, ("/", "/sys/fs/cgroup/uni fied")]
    assert parse_mount("nonsense") is None


@pytest.mark.parametrize(
    ("root", "own", "inside"),
    [("/", "/", "."), ("/", "/user.slice/a.scope", "user.slice/a.scope"), ("/docker/1", "/docker/1/sub", "sub")],
)
def test_our_own_cgroup_is_found_in_the_mount(files: Path, root: str, own: str, inside: str) -> None:
    mount = files / "unified"
    (mount / inside).mkdir(parents=True)
    (mount / inside / "cgroup.procs").write_text("")
    (files / "mountinfo").write_text(HYBRID.format(mount=mount).replace("0:38 /", f"0:38 {root}"))
    (files / "own_cgroup").write_text(f"4:memory:/elsewhere\n0::{own}\n")
    assert own_cgroup() == str((mount / inside).resolve())


@pytest.mark.parametrize("own", ["/other/2", "/../outside", ""])
def test_a_cgroup_that_the_mount_does_not_show_cannot_be_had(files: Path, own: str) -> None:
    (files / "unified").mkdir()
    (files / "mountinfo").write_text(HYBRID.format(mount=files / "unified").replace("0:38 /", "0:38 /docker/1"))
    (files / "own_cgroup").write_text(f"0::{own}\n" if own else "4:memory:/\n")
    assert own_cgroup() is None


def test_without_proc_there_is_no_cgroup(files: Path) -> None:
    assert own_cgroup() is None


def test_portable_means_markers() -> None:
    assert (decide(wanted=None, portable=True).kind, decide(wanted="marker", portable=False).kind) == ("marker",) * 2


def test_the_choice_is_the_best_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containment, "become_subreaper", lambda: True)
    monkeypatch.setattr(containment, "usable_base", lambda: "/base")
    assert (decide(wanted=None, portable=False).kind, decide(wanted=None, portable=False).base) == ("cgroup", "/base")
    assert decide(wanted="subreaper", portable=False).base is None
    monkeypatch.setattr(containment, "usable_base", lambda: None)
    assert decide(wanted=None, portable=False).kind == "subreaper"
    with pytest.raises(ContainmentError, match="needs a cgroup2 hierarchy"):
        decide(wanted="cgroup", portable=False)
    monkeypatch.setattr(containment, "become_subreaper", lambda: False)
    assert decide(wanted=None, portable=False).kind == "marker"
    with pytest.raises(ContainmentError, match="needs Linux's child subreaper"):
        decide(wanted="subreaper", portable=False)


def test_an_unknown_wish_is_refused() -> None:
    with pytest.raises(ContainmentError, match="'hope' is unknown: use one of cgroup, subreaper, marker"):
        decide(wanted="hope", portable=False)


def test_only_cgroup_containment_makes_cgroups(tmp_path: Path) -> None:
    assert Containment("subreaper").create("a", 1) is None
    base = tmp_path / "base"
    with pytest.raises(FileNotFoundError):  # an ordinary folder has no cgroup.procs
        Containment("cgroup", str(base)).create("a", 1)
    assert not base.exists()


def test_the_pids_of_a_cgroup_are_those_below_it_too(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deeper").mkdir(parents=True)
    (tmp_path / "cgroup.procs").write_text("1\n2\n")
    (tmp_path / "sub" / "deeper" / "cgroup.procs").write_text("0\n3\n")
    assert cgroup_pids(str(tmp_path)) == [1, 2, 3]
    assert cgroup_pids(str(tmp_path / "missing")) == []


def test_a_cgroup_that_cannot_be_read_does_not_pass_for_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.procs").write_text("1\n")

    def refuse(*_: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(containment, "open", refuse, raising=False)
    number = errno.EMFILE
    with pytest.raises(OSError, match="refused"):
        cgroup_pids(str(tmp_path))
    number = errno.ENODEV  # it was removed meanwhile
    assert cgroup_pids(str(tmp_path)) == []


def test_killing_says_when_the_kernel_cannot(tmp_path: Path) -> None:
    assert not kill_cgroup(str(tmp_path))
    (tmp_path / "cgroup.kill").write_text("")
    assert kill_cgroup(str(tmp_path))
    assert (tmp_path / "cgroup.kill").read_text() == "1"


def test_a_removed_cgroup_takes_the_keepers_empty_folder_along(tmp_path: Path) -> None:
    for name in ("a/nested", "b"):
        (tmp_path / "base" / name).mkdir(parents=True)
    remove_cgroup(str(tmp_path / "base" / "a"))
    assert [path.name for path in (tmp_path / "base").iterdir()] == ["b"]
    remove_cgroup(str(tmp_path / "base" / "b"))
    remove_cgroup(str(tmp_path / "base" / "b"))
    assert not (tmp_path / "base").exists()


def test_a_cgroups_own_count_goes_before_the_machines(files: Path) -> None:
    assert oom_kills(None) is None
    (files / "vmstat").write_text("oom_kill_other 9\noom_kill 3\n")
    assert oom_kills(None) == 3
    assert oom_kills(str(files)) == 3
    (files / "memory.events").write_text("low 0\noom 2\noom_kill 1\noom_group_kill 0\n")
    assert oom_kills(str(files)) == 1
