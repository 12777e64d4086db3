"""What a page says to a widget, from the agent to the kernel."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import zmq
from jupyter_client.session import Session

from gpulayer.protocol.messages import Ack, CommMessage, HeartbeatAck, ServerMessage
from gpulayer_worker.comms import pass_on
from gpulayer_worker.kernels import Kernel, Kernels
from gpulayer_worker.layout import Layout


class Told:
    """Stands in for `Kernels`."""

    def __init__(self) -> None:
        self.told: list[tuple[object, CommMessage]] = []

    def tell_comm(self, kernel: object, message: CommMessage) -> None:
        self.told.append((kernel, message))


def kernel(*, dead: bool = False) -> Any:
    return SimpleNamespace(exit=SimpleNamespace(done=lambda: dead))


def comm(**place: str) -> CommMessage:
    return CommMessage(kind="comm_msg", parts=(b"{}", b"{}"), **place)


def test_each_goes_to_its_kernel_and_the_rest_goes_on_in_order() -> None:
    shared, own, dead, kernels = kernel(), kernel(), kernel(dead=True), Told()
    rest: list[ServerMessage] = [Ack(attempt="a", offset=1), HeartbeatAck()]
    messages = [comm(attempt="a"), rest[0], comm(session="s"), comm(session="gone"), comm(attempt="gone"), rest[1]]
    messages += [comm(session="dead"), comm(attempt="starting"), comm()]
    runs: Any = {"a": SimpleNamespace(kernel=own), "starting": SimpleNamespace(kernel=None)}
    assert pass_on(messages, {"s": shared, "dead": dead}, runs, kernels) == rest  # type: ignore[arg-type]
    assert kernels.told == [(own, comm(attempt="a")), (shared, comm(session="s"))]


def test_it_goes_by_the_control_channel_signed_and_with_its_parts(short_folder: Any) -> None:
    async def check() -> None:
        kernels = Kernels(Layout(short_folder / "data"), SimpleNamespace(), warm=0)  # type: ignore[arg-type]
        layout = Layout(short_folder / "data")
        folder = layout.kernel("k1")
        folder.mkdir(parents=True)
        layout.note(folder, "connection", {"ip": str(short_folder / "k"), "control_port": 5})
        session: Any = Session(key=b"secret")
        it = Kernel("k1", folder, session, None, asyncio.get_running_loop().create_future())  # type: ignore[arg-type]
        context = zmq.Context()
        control = context.socket(zmq.ROUTER)
        control.bind(f"ipc://{short_folder}/k-5")
        try:
            for part in (b"one", b"two"):
                kernels.tell_comm(it, CommMessage(kind="comm_close", parts=(b"{}", b"{}", part), attempt="a"))
            for part in (b"one", b"two"):
                assert control.poll(30_000)
                _, message = session.recv(control, mode=0)
                assert (message["msg_type"], message["content"]) == ("gpulayer_comm_request", {"kind": "comm_close"})
                assert [bytes(each) for each in message["buffers"]] == [b"{}", b"{}", part]
        finally:
            context.destroy(linger=0)
            await kernels.close()

    asyncio.run(check())
