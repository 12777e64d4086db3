"""The socket's folder and who may speak."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer_worker.keeper import server
from gpulayer_worker.keeper.context import Context
from gpulayer_worker.keeper.eventloop import Loop
from gpulayer_worker.keeper.records import Folder, write_json
from gpulayer_worker.keeper.server import Server, make_run_folder, peer_uid


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[str]:
    path = make_run_folder(str(tmp_path / "keeper.json"))
    yield path
    if os.path.isdir(path):
        os.rmdir(path)


def test_a_folder_is_taken_again_only_when_it_is_still_ours(tmp_path: Path, run_folder: str) -> None:
    recorded = tmp_path / "keeper.json"
    write_json(str(recorded), {"run_dir": run_folder})
    assert make_run_folder(str(recorded)) == run_folder
    os.chmod(run_folder, 0o755)
    other = make_run_folder(str(recorded))
    assert other != run_folder
    os.rmdir(other)
    os.chmod(run_folder, 0o700)
    link = tmp_path / "link"
    link.symlink_to(run_folder)
    write_json(str(recorded), {"run_dir": str(link)})
    other = make_run_folder(str(recorded))
    assert other not in (str(link), run_folder)
    os.rmdir(other)


def test_the_other_end_of_a_socket_is_known() -> None:
    ours, theirs = socket.socketpair()
    assert peer_uid(ours) == os.getuid()
    ours.close()
    theirs.close()


def test_another_user_is_refused(tmp_path: Path, run_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "peer_uid", lambda _: os.getuid() + 1)
    loop = Loop()
    asked: list[object] = []
    context = Context(loop=loop, folder=Folder(str(tmp_path)), portable=False)
    listening = Server(context, run_folder, lambda request, _: asked.append(request))
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(listening.path)
        stranger.sendall(b'{"n": 1, "op": "ping"}\n')
        loop.run_once()
        with contextlib.suppress(ConnectionResetError):  # closed without a word, one way or the other
            assert stranger.recv(1) == b""
    assert asked == []
    listening.close()
    loop.close()
    assert not os.path.exists(run_folder)
