"""Widgets of a remote kernel, shown here: each of its comms has a twin in the notebook's own kernel.

What the remote kernel says goes on to the front end as it is. The twin keeps the widget's state, so that a page that
is loaded again finds it, also when the remote kernel is long gone. What the front end says stays with the twin: the
cell on the worker does not hear of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Content = dict[str, Any]
Path = tuple[str | int, ...]
_CONTROL = "jupyter.widget.control"  # the target of a comm by which a page that is loaded asks for all widgets


class Twin:
    """The local end of one remote comm. Its state is changed by the replay, and by what the front end sets."""

    def __init__(self, comm: Any):
        self.comm = comm
        self._state: Content = {}
        self._buffers: dict[Path, bytes] = {}  # what the state holds that is no JSON, by where
        comm.on_msg(lambda message: self._heard(message["content"]["data"], message.get("buffers") or []))

    def begin(self) -> None:
        """It is opened, maybe anew: nothing is known of it."""
        self._state, self._buffers = {}, {}

    def take(self, data: Content, buffers: list[bytes]) -> None:
        """Remember what an opening or an update sets."""
        state = data.get("state")
        if not isinstance(state, dict) or data.get("method", "update") not in ("update", "echo_update"):
            return
        self._state.update(state)
        self._buffers = {path: value for path, value in self._buffers.items() if path[0] not in state}
        for path, buffer in zip(data.get("buffer_paths") or [], buffers, strict=False):
            self._buffers[tuple(path)] = buffer
            self._state.setdefault(path[0], None)

    def state(self) -> tuple[Content, list[list[str | int]], list[bytes]]:
        """The state, the places in it whose values are bytes, and these values."""
        state = {name: value for name, value in self._state.items() if (name,) not in self._buffers}
        return state, [list(path) for path in self._buffers], list(self._buffers.values())

    def _heard(self, data: Content, buffers: list[bytes]) -> None:
        """A front end asks for the state, as after a reload, or has changed it."""
        if data.get("method") != "request_state":
            self.take(data, [bytes(each) for each in buffers])
            return
        state, paths, values = self.state()
        self.comm.send(data={"method": "update", "state": state, "buffer_paths": paths}, buffers=values)


_twins: dict[str, Twin] = {}  # of all that was replayed here and was not closed, by comm id


class Comms:
    """Takes the comm messages of one job's stream. Used where there is a kernel to have comms."""

    def __init__(self, parent: Callable[[], Any]):
        """`parent` gives the request that the cell is running for."""
        self._parent = parent

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
            del _twins[content["comm_id"]]
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
            twin.comm.on_close(lambda _: _twins.pop(name, None))
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
    for name, twin in _twins.items():
        state, own_paths, values = twin.state()
        if "_model_name" not in state:  # a comm that is no widget's
            continue
        model = {f"model_{key}": state.get(f"_model_{key}") for key in ("name", "module", "module_version")}
        states[name] = {**model, "state": state}
        paths += [[name, "state", *path] for path in own_paths]
        buffers += values
    return {**data, "states": states, "buffer_paths": paths}, buffers
