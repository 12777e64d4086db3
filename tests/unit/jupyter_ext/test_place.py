"""A control plane elsewhere, by its address and a token's file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpulayer.client.embedded import lives
from gpulayer_jupyter.place import Remote


def test_a_remote_one_reads_its_token_anew(tmp_path: Path) -> None:
    file = tmp_path / "token"
    place = Remote("https://hub.example/user/x/gpulayer/", file, tmp_path)
    assert place.endpoint() is None
    assert place.status().state == "failed"
    assert f"{file}: No such file or directory; name it with GpulayerApp.token_file" in place.status().text
    for token in ("one", "two"):
        file.write_text(f"{token}\n")
        endpoint = place.endpoint()
        assert endpoint is not None
        assert (endpoint.url, endpoint.token) == ("https://hub.example/user/x/gpulayer", token)
    status = place.status()
    assert (status.state, status.url) == ("remote", "https://hub.example/user/x/gpulayer")
    assert "two" not in status.text


def test_a_remote_one_may_need_no_token(tmp_path: Path) -> None:
    endpoint = Remote("http://127.0.0.1:1", None, tmp_path).endpoint()
    assert endpoint is not None
    assert endpoint.token == ""


def test_whether_a_process_lives() -> None:
    assert lives(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert not lives(child.pid)
