"""Widgets of a remote kernel, shown here: each of its comms has a twin in the notebook's own kernel.

What the remote kernel says goes on to the front end as it is. The twin keeps the widget's state, so that a page that
is loaded again finds it, also when the remote kernel is long gone. What the front end says goes on to the remote
kernel while that is there: to a cell that runs, and in a session also after the cell. While the magic waits in the
main thread, it is the kernel's subshell here that hears it, with ipykernel 7; with ipykernel 6 it is heard after the
cell.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from gpulayer.client.connection import Connection
from gpulayer.protocol.messages import CommKind

Content = dict[str, Any]
Path = tuple[str | int, ...]
_CONTROL = "jupyter.widget.control"  # the target of a comm by which a page that is loaded asks for all widgets


class Far:
    """The kernel on the worker that a job's widgets live in. Any thread may speak to it."""

    def __init__(self, connection: Connection, job: str):
        self._connection = connection
        self._job = job
        self.session: str | None = None  # the name of the job's

    def tell(self, kind: CommKind, message: Content) -> None:
        """Pass on what the page says; one line says where that can't be."""
        packed = [json.dumps(message.get(part) or {}).encode() for part in ("metadata", "content")]
        buffers = [bytes(each) for each in message.get("buffers") or ()]
        try:
            self._connection.tell_widget(self._job, self.session, kind, packed + buffers)
        except ValueError as error:
            sys.stderr.write(f"gpulayer: job {self._job} does not hear of it: {error}\n")


class Twin:
    """The local end of one remote comm. Its state is changed by the replay, and by what the front end sets.

    These may be two threads.
    """

    def __init__(self, comm: Any):
        self.comm = comm
        self.far: Far | None = None  # the other end, where it may be there
        self._lock = threading.RLock()
        self._state: Content = {}
        self._buffers: dict[Path, bytes] = {}  # what the state holds that is no JSON, by where
        comm.on_msg(self._heard)
        comm.on_close(self._closed)
        if hasattr(comm, "_reply_subshell_for"):  # ipykernel 7.4 would let a page wait for the thread that waits for it
            comm._reply_subshell_for = lambda data, asked: asked

    def begin(self) -> None:
        """It is opened, maybe anew: nothing is known of it."""
        with self._lock:
            self._state, self._buffers = {}, {}

    def take(self, data: Content, buffers: list[bytes]) -> None:
        """Remember what an opening or an update sets."""
        state = data.get("state")
        if not isinstance(state, dict) or data.get("method", "update") not in ("update", "echo_update"):
            return
        with self._lock:
            self._state.update(state)
            self._buffers = {path: value for path, value in self._buffers.items() if path[0] not in state}
            for path, buffer in zip(data.get("buffer_paths") or [], buffers, strict=False):
                self._buffers[tuple(path)] = buffer
                self._state.setdefault(path[0], None)

    def state(self) -> tuple[Content, list[list[str | int]], list[bytes]]:
        """The state, the places in it whose values are bytes, and these values."""
        with self._lock:
            state = {name: value for name, value in self._state.items() if (name,) not in self._buffers}
            return state, [list(path) for path in self._buffers], list(self._buffers.values())

    def _heard(self, message: Content) -> None:
        """A front end asks for the state, as after a reload, or has changed it, or says something else."""
        data = message["content"]["data"]
        if data.get("method") != "request_state":
            self.take(data, [bytes(each) for each in message.get("buffers") or ()])
            if self.far is not None:
                self.far.tell("comm_msg", message)
            return
        state, paths, values = self.state()
        self.comm.send(data={"method": "update", "state": state, "buffer_paths": paths}, buffers=values)

    def _closed(self, message: Content) -> None:
        """A front end has closed it."""
        _twins.pop(self.comm.comm_id, None)
        if self.far is not None:
            self.far.tell("comm_close", message)


_twins: dict[str, Twin] = {}  # of all that was replayed here and was not closed, by comm id


class Comms:
    """Takes the comm messages of one job's stream. Used where there is a kernel to have comms."""

    def __init__(self, parent: Callable[[], Any], far: Far | None = None):
        """`parent` gives the request that the cell is running for; `far` is the kernel whose messages come."""
        self._parent = parent
        self._far = far

    def take(self, kind: str, parts: list[bytes]) -> None:
        """Let the front end have a message of the remote kernel: its parts, as a KERNEL record has them."""
        content: Content = json.loads(parts[3])
        data, metadata, buffers = content.get("data") or {}, json.loads(parts[2]), parts[4:]
        self._at_home(data, json.loads(parts[1]))
        if kind == "comm_open":
            self._open(content, data, metadata, buffers)
            return
        twin = _twins.get(content["comm_id"])
        if twin is None:  # opened by a cell that was not replayed here: no front end knows it either
            return
        if kind == "comm_close":
            _twins.pop(content["comm_id"], None)  # the page may close it in this moment
            twin.comm.close(data=data, metadata=metadata, buffers=buffers)
            return
        twin.take(data, buffers)
        twin.comm.publish_msg("comm_msg", data=data, metadata=metadata, buffers=buffers)

    def _open(self, content: Content, data: Content, metadata: Content, buffers: list[bytes]) -> None:
        import comm  # with ipykernel; a terminal's shell has no need of it

        name, target = content["comm_id"], content["target_name"]
        twin = _twins.get(name)
        if twin is None:
            twin = _twins[name] = Twin(comm.create_comm(comm_id=name, primary=False, target_name=target))
        twin.far = self._far
        manager: Any = comm.get_comm_manager()
        manager.register_comm(twin.comm)
        if not isinstance(manager.targets.get(_CONTROL), _AllWidgets):
            manager.targets[_CONTROL] = _AllWidgets(manager.targets.get(_CONTROL))
        twin.begin()
        twin.take(data, buffers)
        module = content.get("target_module")
        twin.comm.publish_msg(
            "comm_open", data=data, metadata=metadata, buffers=buffers, target_name=target, target_module=module
        )

    def _at_home(self, data: Content, remote: Content) -> None:
        """An Output widget names the request whose output it takes: here that is the cell's own."""
        state = data.get("state")
        if isinstance(state, dict) and state.get("msg_id") and state["msg_id"] == remote.get("msg_id"):
            state["msg_id"] = self._parent().get("header", {}).get("msg_id", "")


class _AllWidgets:
    """Answers a page that asks for all widgets: those of remote kernels, and the notebook's own, if it has any."""

    def __init__(self, own: Callable[[Any, Any], None] | None):
        """`own` is what answered before: ipywidgets, where the notebook itself has imported that."""
        self._own = own

    def __call__(self, control: Any, message: Any) -> None:
        """The page opens its comm."""
        send = control.send

        def send_all(data: Content | None = None, metadata: Content | None = None, buffers: Any = None) -> None:
            if data is not None and data.get("method") == "update_states":
                data, buffers = _with_twins(data, list(buffers or ()))
            send(data=data, metadata=metadata, buffers=buffers)

        control.send = send_all
        if self._own is not None:
            self._own(control, message)
        else:
            control.on_msg(lambda _: send_all({"method": "update_states", "states": {}, "buffer_paths": []}))


def _with_twins(data: Content, buffers: list[bytes]) -> tuple[Content, list[bytes]]:
    states, paths = dict(data["states"]), list(data["buffer_paths"])
    for name, twin in list(_twins.items()):
        state, own_paths, values = twin.state()
        if "_model_name" not in state:  # a comm that is no widget's
            continue
        model = {f"model_{key}": state.get(f"_model_{key}") for key in ("name", "module", "module_version")}
        states[name] = {**model, "state": state}
        paths += [[name, "state", *path] for path in own_paths]
        buffers += values
    return {**data, "states": states, "buffer_paths": paths}, buffers
