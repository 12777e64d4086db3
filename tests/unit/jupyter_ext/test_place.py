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


def test_a_remote_one_may_be_pinned_and_have_its_token_from_the_environment(tmp_path: Path) -> None:
    place = Remote("https://box:8443", None, tmp_path, token="secret", fingerprint="AB" * 32)
    endpoint = place.endpoint()
    assert endpoint is not None
    assert (endpoint.token, endpoint.fingerprint) == ("secret", "SHA256:" + "ab" * 32)
    assert endpoint.certificate == "", "looked at by whoever connects: this is asked on a loop"
    assert place.status().text == "uses the control plane at https://box:8443"
    shared = place.share(tmp_path)
    assert b"ab" * 32 in (shared / "endpoint.json").read_bytes()
    place.unshare()


def test_a_fingerprint_that_is_none_is_said(tmp_path: Path) -> None:
    place = Remote("https://box:8443", None, tmp_path, token="secret", fingerprint="SHA256:12")
    assert place.endpoint() is None
    assert place.status().state == "failed"
    assert "'SHA256:12' is not a fingerprint" in place.status().text
    assert "GpulayerApp.fingerprint" in place.status().text


def test_plain_http_to_another_machine_is_said(tmp_path: Path) -> None:
    assert "can be read by anybody on the way" in Remote("http://10.0.0.1:8765", None, tmp_path).status().text
    assert "can be read" not in Remote("http://127.0.0.1:8765", None, tmp_path).status().text


def test_whether_a_process_lives() -> None:
    assert lives(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert not lives(child.pid)
