"""Which addresses are of this machine itself."""

from __future__ import annotations

import pytest

from gpulayer.protocol.endpoint import on_loopback


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:8765", True),
        ("http://127.0.1.1", True),
        ("https://localhost:8443/user/x/gpulayer", True),
        ("http://LOCALHOST:1", True),
        ("http://[::1]:8888/x", True),
        ("http://127.0.0.1.example.org", False),
        ("http://localhost.example.org/", False),
        ("http://example.org/127.0.0.1", False),
        ("http://example.org/?u=//localhost", False),
        ("http://192.168.1.50:8888", False),
        ("http://[::2]:8888", False),
        ("http://user@example.org", False),
        ("nothing", False),
    ],
)
def test_what_is_on_loopback(url: str, loopback: bool) -> None:
    assert on_loopback(url) is loopback
