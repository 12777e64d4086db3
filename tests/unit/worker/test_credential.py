"""Addresses as they are pasted, and the file with a worker's own credential."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpulayer_worker.credential import Credential, JoinError, address, joined_endpoint, read_credential


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("http://host:8888", "http://host:8888"),
        ("http://host:8888/", "http://host:8888"),
        (" https://host/user/x/gpulayer/ ", "https://host/user/x/gpulayer"),
        ("https://[::1]:8443/p//", "https://[::1]:8443/p"),
        ("HTTPS://Host", "https://Host"),
    ],
)
def test_an_address_in_its_plain_form(given: str, plain: str) -> None:
    assert address(given) == plain


@pytest.mark.parametrize(
    "given",
    [
        "host:8888",
        "ftp://host",
        "http://",
        "http:///path",
        "http://host:port",
        "http://host:99999",
        "http://host:0",
        "http://[::1",
        "http://host:8888/lab?token=secret",
        "http://host:8888/#secret",
        "http://me:secret@host:8888",
        "http://host/a b",
        "http://host/a\nb",
        "http://host/\x1b[2J",
        "-",
        " ",
    ],
)
def test_what_is_no_address(given: str) -> None:
    with pytest.raises(JoinError) as error:
        address(given)
    text = str(error.value)
    assert error.value.code == 2
    assert "is not an address" in text
    assert "paste the whole join line" in text
    assert "secret" not in text  # it may be in a log
    assert text.isprintable()


def test_the_credential_of_a_folder(tmp_path: Path) -> None:
    assert read_credential(tmp_path) is None
    assert joined_endpoint(tmp_path) is None
    kept = Credential(url="http://host/x", credential="gl-worker-x")
    (tmp_path / "credential.json").write_bytes(msgspec.json.encode(kept))
    assert read_credential(tmp_path) == kept
    found = joined_endpoint(tmp_path)
    assert found is not None
    assert (found.url, found.token) == ("http://host/x", "gl-worker-x")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"url":"http://host"}', b'{"url":1,"credential":"x"}'])
def test_a_file_that_is_no_credential_counts_as_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "credential.json").write_bytes(data)
    assert read_credential(tmp_path) is None


def test_a_folder_that_is_a_file_has_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read_credential(tmp_path / "file") is None
