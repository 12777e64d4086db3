"""Sockets, as far as large bodies need them their own way."""

from __future__ import annotations

import socket
import sys

import pytest

from gpulayer.source.streams import unpaced


def congestion(line: socket.socket) -> bytes:
    return line.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such choice")
@pytest.mark.parametrize(("before", "after"), [(b"bbr", b"reno"), (b"reno", b"reno")])
def test_nothing_makes_pauses_on_the_way_to_this_machine(before: bytes, after: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as line:
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, before)
        except OSError:
            pytest.skip(f"{before.decode()} is not here, or not allowed")
        for _ in range(2):
            unpaced(line)
            assert congestion(line) == after


def test_other_sockets_stay_as_they_are() -> None:
    one, other = socket.socketpair()
    with one, other, socket.socket() as unconnected:
        for line in (one, unconnected):
            timeout = line.gettimeout()
            unpaced(line)
            assert line.gettimeout() == timeout
        one.close()
        unpaced(one)
        assert one.fileno() == -1
