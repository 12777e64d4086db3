"""Requests that come by the kernel's own socket, past the shell channel."""

from __future__ import annotations

import socket

from gpulayer.protocol.records import encode_kernel
from tests.unit.worker.kernel.conftest import RemoteKernel

PORT = 6


def connect(kernel: RemoteKernel) -> socket.socket:
    kernel.run("None")  # it is up
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.settimeout(30)
    end.connect(f"{kernel.folder / 'k'}-{PORT}")
    return end


def test_a_request_runs_and_nothing_is_answered(kernel: RemoteKernel) -> None:
    with connect(kernel) as end:
        kernel.reply()  # of the cell before
        output, frames = kernel.request("print('direct'); 6 * 7")
        record = encode_kernel(frames)
        end.sendall(record[:10])
        end.sendall(record[10:])
        kernel.wait(output, lambda: output.ended)
        assert output.text() == "direct\n"
        assert output.reply["status"] == "ok"
        again = kernel.run("'still here'")
        assert kernel.reply()["parent_header"]["msg_id"] == again.attempt  # the next that is answered


def test_the_same_attempt_by_both_ways_runs_once(kernel: RemoteKernel) -> None:
    kernel.run("runs = 0")
    with connect(kernel) as end:
        output, frames = kernel.request("runs += 1")
        end.sendall(encode_kernel(frames))
        kernel.wait(output, lambda: output.ended)
        kernel.send("runs += 1", attempt=output.attempt)
        end.sendall(encode_kernel(frames))
        seen = kernel.run("print(runs)")
        assert seen.text() == "1\n"


def test_what_is_no_record_closes_that_connection_alone(kernel: RemoteKernel) -> None:
    with connect(kernel) as bad, connect(kernel) as good:
        bad.sendall(b"\xff" * 64)
        assert bad.recv(1) == b""
        output, frames = kernel.request("print('good')")
        good.sendall(encode_kernel(frames))
        kernel.wait(output, lambda: output.ended)
        assert output.text() == "good\n"


def test_a_window_systems_loop_closes_it(fresh: RemoteKernel) -> None:
    fresh.start()
    with connect(fresh) as end:
        fresh.run("%gui asyncio")
        assert end.recv(1) == b""
        assert fresh.run("print('by the shell channel')").text() == "by the shell channel\n"
