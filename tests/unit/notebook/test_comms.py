"""Widgets of a remote kernel, as comms of the notebook's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import comm
import pytest
from comm.base_comm import BaseComm, CommManager

from gpulayer.client.connection import Connection
from gpulayer.notebook import comms as module
from gpulayer.notebook.comms import Comms, Far
from gpulayer.protocol.messages import CommKind

Sent = tuple[str, str, dict[str, Any], list[bytes]]


class FrontEnd:
    """What a page sees of the comms, and its way to speak to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.manager = CommManager()
        self.sent: list[Sent] = []
        sent = self.sent

        class Comm(BaseComm):
            def publish_msg(
                self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
            ) -> None:
                sent.append((msg_type, self.comm_id, data or {}, list(buffers or [])))

        monkeypatch.setattr(comm, "create_comm", Comm)
        monkeypatch.setattr(comm, "get_comm_manager", lambda: self.manager)

    def say(self, comm_id: str, data: dict[str, Any], *buffers: bytes) -> None:
        """What the kernel gets from the page."""
        message = {
            "content": {"comm_id": comm_id, "data": data},
            "metadata": {"version": "2"},
            "buffers": [memoryview(each) for each in buffers],
        }
        self.manager.comm_msg(None, "", message)  # type: ignore[arg-type]

    def ask(self, comm_id: str) -> tuple[dict[str, Any], list[bytes]]:
        """A widget's state, as a page that was loaded again asks for it."""
        self.sent.clear()
        self.say(comm_id, {"method": "request_state"})
        [(kind, _, data, buffers)] = self.sent
        assert kind == "comm_msg"
        return data, buffers


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrontEnd]:
    yield FrontEnd(monkeypatch)
    for twin in module._twins.values():
        twin.comm._closed = True
    module._twins.clear()


@pytest.fixture
def comms() -> Comms:
    return Comms(lambda: {"header": {"msg_id": "here"}})


def message(content: dict[str, Any], *buffers: bytes, parent: str = "there") -> list[bytes]:
    parts = [{}, {"msg_id": parent}, {"version": "2"}, content]
    return [*(json.dumps(part).encode() for part in parts), *buffers]


def opened(comms: Comms, data: dict[str, Any], *buffers: bytes) -> None:
    comms.take("comm_open", message({"comm_id": "w", "target_name": "jupyter.widget", "data": data}, *buffers))


def updated(comms: Comms, data: dict[str, Any], *buffers: bytes) -> None:
    comms.take("comm_msg", message({"comm_id": "w", "data": data}, *buffers))


def test_what_the_remote_kernel_says_is_published_with_its_buffers(page: FrontEnd, comms: Comms) -> None:
    opened(comms, {"state": {"value": 1}}, b"\x00")
    updated(comms, {"method": "custom", "content": {"a": 1}}, b"\xff", b"")
    comms.take("comm_close", message({"comm_id": "w", "data": {"bye": 1}}))
    assert page.sent == [
        ("comm_open", "w", {"state": {"value": 1}}, [b"\x00"]),
        ("comm_msg", "w", {"method": "custom", "content": {"a": 1}}, [b"\xff", b""]),
        ("comm_close", "w", {"bye": 1}, []),
    ]
    assert page.manager.comms == {}


def test_a_page_that_is_loaded_again_finds_the_comm_and_its_state(page: FrontEnd, comms: Comms) -> None:
    opened(comms, {"state": {"value": 1, "max": 9}})
    updated(comms, {"method": "update", "state": {"value": 5}})
    updated(comms, {"method": "custom", "content": {"value": 7}})  # says nothing of the state
    assert page.manager.comms["w"].target_name == "jupyter.widget"
    assert page.ask("w") == ({"method": "update", "state": {"value": 5, "max": 9}, "buffer_paths": []}, [])


def test_binary_state_is_kept_where_it_was(page: FrontEnd, comms: Comms) -> None:
    opened(comms, {"state": {"format": "png", "data": [None]}, "buffer_paths": [["value"], ["data", 0]]}, b"P", b"D")
    data, buffers = page.ask("w")
    assert data["state"] == {"format": "png", "data": [None]}
    assert dict(zip(map(tuple, data["buffer_paths"]), buffers, strict=True)) == {("value",): b"P", ("data", 0): b"D"}
    updated(comms, {"method": "update", "state": {}, "buffer_paths": [["value"]]}, b"P2")
    updated(comms, {"method": "update", "state": {"data": []}})
    data, buffers = page.ask("w")
    assert (data["state"], data["buffer_paths"], buffers) == ({"format": "png", "data": []}, [["value"]], [b"P2"])


def asked_for_all(page: FrontEnd) -> tuple[dict[str, Any], list[bytes]]:
    """What a page that is loaded again is told of all widgets."""
    page.sent.clear()
    content = {"comm_id": "all", "target_name": "jupyter.widget.control", "data": {}}
    page.manager.comm_open(None, "", {"content": content})  # type: ignore[arg-type]
    page.say("all", {"method": "request_states"})
    [(kind, _, data, buffers)] = [each for each in page.sent if each[1] == "all"]
    assert (kind, data["method"]) == ("comm_msg", "update_states")
    return data, buffers


MODEL = {"_model_name": "Image", "_model_module": "controls", "_model_module_version": "2.0.0"}
TOLD = {"model_name": "Image", "model_module": "controls", "model_module_version": "2.0.0"}


def test_a_page_that_asks_for_all_widgets_is_told_of_ours(page: FrontEnd, comms: Comms) -> None:
    opened(comms, {"state": MODEL | {"width": 5}, "buffer_paths": [["value"]]}, b"P")
    comms.take("comm_open", message({"comm_id": "no widget", "target_name": "mine", "data": {"a": 1}}))
    data, buffers = asked_for_all(page)
    assert data["states"] == {"w": {**TOLD, "state": MODEL | {"width": 5}}}
    assert (data["buffer_paths"], buffers) == ([["w", "state", "value"]], [b"P"])


def test_and_of_the_notebooks_own(page: FrontEnd, comms: Comms) -> None:
    """ipywidgets answers for those; that it was imported by a later cell does not matter."""

    def answer(control: Any, opening: Any) -> None:
        own = {"method": "update_states", "states": {"own": {}}, "buffer_paths": [["own", "state", "b"]]}
        control.on_msg(lambda _: control.send(own, buffers=[b"O"]))

    for _ in range(2):
        opened(comms, {"state": MODEL, "buffer_paths": [["value"]]}, b"P")
        page.manager.register_target("jupyter.widget.control", answer)
    opened(comms, {"state": MODEL, "buffer_paths": [["value"]]}, b"P")
    data, buffers = asked_for_all(page)
    assert set(data["states"]) == {"own", "w"}
    assert data["buffer_paths"] == [["own", "state", "b"], ["w", "state", "value"]]
    assert buffers == [b"O", b"P"]


def test_what_the_page_sets_is_remembered(page: FrontEnd, comms: Comms) -> None:
    opened(comms, {"state": {"value": 1}})
    page.say("w", {"method": "update", "state": {"value": 2}})
    assert page.ask("w")[0]["state"] == {"value": 2}


def test_replayed_again_it_begins_anew_and_the_page_is_told_of_no_end(page: FrontEnd, comms: Comms) -> None:
    """As when a job is attached to twice: the second widget must not go with the first one's comm."""
    for value in (1, 2):
        opened(comms, {"state": {"value": value}})
    assert [kind for kind, *_ in page.sent] == ["comm_open", "comm_open"]
    assert page.ask("w")[0]["state"] == {"value": 2}


def test_a_comm_that_the_page_has_closed_is_gone(page: FrontEnd, comms: Comms) -> None:
    opened(comms, {"state": {"value": 1}})
    page.manager.comm_close(None, "", {"content": {"comm_id": "w", "data": {}}})  # type: ignore[arg-type]
    page.sent.clear()
    updated(comms, {"method": "update", "state": {"value": 5}})
    comms.take("comm_close", message({"comm_id": "w"}))
    assert page.sent == []


def test_of_a_comm_that_was_never_opened_here_nothing_is_said(page: FrontEnd, comms: Comms) -> None:
    updated(comms, {"method": "update", "state": {"value": 5}})
    comms.take("comm_close", message({"comm_id": "w"}))
    assert page.sent == []


def test_an_output_widget_takes_the_output_of_the_cell_here(page: FrontEnd, comms: Comms) -> None:
    opened(comms, {"state": {"msg_id": ""}})
    updated(comms, {"method": "update", "state": {"msg_id": "there"}})
    updated(comms, {"method": "update", "state": {"msg_id": "of another cell"}})
    updated(comms, {"method": "update", "state": {"msg_id": ""}})
    told = [data["state"]["msg_id"] for _, _, data, _ in page.sent]
    assert told == ["", "here", "of another cell", ""]


def test_a_comm_that_is_no_widgets_has_no_state(page: FrontEnd, comms: Comms) -> None:
    opened(comms, {"state": "mine"})
    updated(comms, {"anything": [1]})
    assert page.ask("w")[0]["state"] == {}


# ---------------------------------------------------------------- what the page says


class Worker(Connection):
    """Where the remote kernel is."""

    def __init__(self) -> None:
        super().__init__(lambda: pytest.fail("nobody is looked for"))
        self.told: list[tuple[str, str | None, str, list[bytes]]] = []

    def tell_widget(self, job: str, session: str | None, kind: CommKind, parts: list[bytes]) -> None:
        if len(parts[-1]) > 100:
            raise ValueError("too much")
        self.told.append((job, session, kind, parts))


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


@pytest.fixture
def far(worker: Worker) -> Far:
    return Far(worker, "k3f9")


def said(content: dict[str, Any]) -> list[bytes]:
    return [json.dumps(part).encode() for part in ({"version": "2"}, {"comm_id": "w", **content})]


def test_what_a_page_says_goes_to_the_remote_kernel(page: FrontEnd, far: Far, worker: Worker) -> None:
    opened(Comms(dict, far), {"state": {"value": 1}})
    page.sent.clear()
    changes = {"method": "update", "state": {"value": 5}, "buffer_paths": [["bytes"]]}
    page.say("w", changes, b"B")
    far.session = "train"
    click = {"method": "custom", "content": {"event": "click"}}
    page.say("w", click)
    assert worker.told == [
        ("k3f9", None, "comm_msg", [*said({"data": changes}), b"B"]),
        ("k3f9", "train", "comm_msg", said({"data": click})),
    ]
    assert page.sent == []  # the remote widget answers
    data, buffers = page.ask("w")
    assert (data["state"], buffers) == ({"value": 5}, [b"B"])  # asked for, the twin answers by itself
    assert len(worker.told) == 2


def test_a_page_that_closes_a_comm_closes_the_remote_one(page: FrontEnd, far: Far, worker: Worker) -> None:
    comms = Comms(dict, far)
    opened(comms, {"state": {}})
    page.manager.comm_close(None, "", {"content": {"comm_id": "w", "data": {}}})  # type: ignore[arg-type]
    assert worker.told == [("k3f9", None, "comm_close", [b"{}", b'{"comm_id": "w", "data": {}}'])]
    page.sent.clear()
    updated(comms, {"method": "custom"})
    assert page.sent == []


def test_attached_again_it_is_the_newer_view_that_passes_on(page: FrontEnd, far: Far, worker: Worker) -> None:
    again = Far(worker, "a81c")
    for each in (far, again):
        opened(Comms(dict, each), {"state": {}})
    page.say("w", {"method": "custom"})
    assert [job for job, *_ in worker.told] == ["a81c"]


def test_what_is_too_large_is_said_in_one_line(page: FrontEnd, far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    opened(Comms(dict, far), {"state": {}})
    page.say("w", {"method": "custom"}, bytes(101))
    assert capsys.readouterr().err == "gpulayer: job k3f9 does not hear of it: too much\n"


def test_ipykernel_7_4_does_not_let_the_page_wait_for_the_cell(
    page: FrontEnd, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks the comm for the subshell, and names the one that the page asked for."""
    monkeypatch.setattr(BaseComm, "_reply_subshell_for", lambda self, data, asked: None, raising=False)
    opened(Comms(dict, far), {"state": {}})
    twin: Any = page.manager.comms["w"]
    assert twin._reply_subshell_for({}, "page's") == "page's"
