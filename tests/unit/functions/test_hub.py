"""What the functions of a process share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpulayer.client.sending import LIMITS, SourceRefused
from gpulayer.functions import hub as hubs
from gpulayer.functions.hub import Folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path / "data"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").write_text("1")
    return tmp_path / "project"


def test_a_folder_is_looked_through_only_so_often(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(hubs.time, "monotonic", lambda: now_s[0])
    source = Folder(str(folder), (), (), LIMITS, True)
    first = source.bundle()
    assert [entry.path for entry in first.manifest.files] == ["a.py"]
    (folder / "b.py").write_text("2")
    now_s[0] += 0.4
    assert source.bundle() is first
    now_s[0] += 0.2
    assert [entry.path for entry in source.bundle().manifest.files] == ["a.py", "b.py"]


def test_one_that_can_not_travel_is_refused_each_time(folder: Path) -> None:
    source = Folder(str(folder / "missing"), (), (), LIMITS, True)
    for _ in range(2):
        with pytest.raises(SourceRefused):
            source.bundle()


def test_a_process_has_one(folder: Path) -> None:
    hubs.forget()
    mine = hubs.hub()
    assert hubs.hub() is mine
    assert mine.folder(str(folder)) is mine.folder(str(folder))
    assert mine.folder(str(folder)) is not mine.folder(str(folder), exclude=("*.txt",))
    hubs.forget()
    assert hubs.hub() is not mine
    hubs.forget()


FORKS = """
import os
from gpulayer.functions import hub
mine = hub.hub()
if os.fork() == 0:
    os._exit(0 if hub._hub is None else 1)
_, status = os.wait()
print(os.waitstatus_to_exitcode(status), hub.hub() is mine)
"""


def test_a_child_has_none_of_its_parents(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    assert done.stdout == "0 True\n"
