"""What pages say to widgets: heard while a cell runs with ipykernel 7, after it with ipykernel 6."""

from __future__ import annotations

import json
from typing import Any

import pytest

WIDGET = """
import threading
from comm import create_comm
heard, news = [], threading.Event()
widget = create_comm(target_name="widget", comm_id="w", data={"state": {"value": 1}})
@widget.on_msg
def told(message):
    heard.append((message["content"]["data"], message["metadata"], [bytes(each) for each in message["buffers"]]))
    print("told")
    widget.send({"method": "update", "state": {"value": 2}})
    news.set()
@widget.on_close
def closed(message):
    heard.append("closed")
    news.set()
"""


@pytest.fixture(scope="module")
def has_subshells(kernel: Any) -> bool:
    version = kernel.run("import ipykernel\nprint(ipykernel.version_info[0])").text()
    return int(version) >= 7


def say(kernel: Any, data: Any, *buffers: bytes, kind: str = "comm_msg") -> None:
    """What the agent sends for a page."""
    parts = [json.dumps(part).encode() for part in ({"version": "2"}, {"comm_id": "w", "data": data})]
    kernel.control("gpulayer_comm_request", {"kind": kind}, [*parts, *buffers])


def comm_data(output: Any) -> list[Any]:
    return [content["data"] for kind, content, _ in output.messages if kind == "comm_msg"]


def test_a_message_is_heard_while_a_cell_runs_and_its_output_is_the_cells(kernel: Any, has_subshells: bool) -> None:
    if not has_subshells:
        pytest.skip("ipykernel 6 has no subshells")
    running = kernel.send(f"{WIDGET}print('ready')\nprint('in time', news.wait(60), heard)")
    kernel.wait(running, lambda: "ready" in running.text())
    say(kernel, {"a": 1}, b"\x00\xff")
    kernel.wait(running, lambda: running.ended)
    assert "told\n" in running.text()
    assert "in time True [({'a': 1}, {'version': '2'}, [b'\\x00\\xff'])]\n" in running.text()
    assert comm_data(running) == [{"method": "update", "state": {"value": 2}}]
    assert running.order.count("status") == 2  # the cell's own


def test_a_cell_that_awaits_wakes_up(kernel: Any, has_subshells: bool) -> None:
    """The handler sets a future of the main thread's loop, as the guide of ipywidgets has it."""
    if not has_subshells:
        pytest.skip("ipykernel 6 has no subshells")
    code = (
        "import asyncio\nfrom comm import create_comm\nw = create_comm(target_name='widget', comm_id='w')\n"
        "future = asyncio.get_running_loop().create_future()\n"
        "w.on_msg(lambda message: future.set_result(message['content']['data']))\nprint('ready')\nprint(await future)"
    )
    running = kernel.send(code)
    kernel.wait(running, lambda: "ready" in running.text())
    say(kernel, {"b": 2})
    kernel.wait(running, lambda: running.ended)
    assert "{'b': 2}\n" in running.text()


def test_with_ipykernel_6_a_message_waits_for_the_cells_end(kernel: Any, has_subshells: bool) -> None:
    if has_subshells:
        pytest.skip("ipykernel 7 has subshells")
    running = kernel.send(f"{WIDGET}print('ready')\nimport os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint(heard)")
    kernel.wait(running, lambda: "ready" in running.text())
    say(kernel, {"a": 1})
    kernel.state()  # the control channel has taken what came before
    (kernel.cwd / "go").touch()
    kernel.wait(running, lambda: running.ended)
    assert running.text().endswith("[]\n")
    after(kernel, [({"a": 1}, {"version": "2"}, [])])


def after(kernel: Any, expected: list[Any]) -> None:
    """The next cell sees that the messages were heard before it, or in a moment."""
    code = f"print(news.wait(60))\nprint(heard == {expected!r}, heard)"
    if not news_in_subshell(kernel):
        code = f"print(heard == {expected!r}, heard)"
    assert "True [" in kernel.run(code).text()


def news_in_subshell(kernel: Any) -> bool:
    return "7" in kernel.run("import ipykernel\nprint(ipykernel.version_info[0])").text()


def test_between_cells_a_message_is_heard_and_what_is_said_then_stands_in_the_next(kernel: Any) -> None:
    kernel.run(WIDGET)
    say(kernel, {"c": 3})
    kernel.state()
    after(kernel, [({"c": 3}, {"version": "2"}, [])])


def test_a_page_closes_a_comm(kernel: Any) -> None:
    kernel.run(WIDGET)
    say(kernel, {}, kind="comm_close")
    kernel.state()
    after(kernel, ["closed"])


def test_a_handler_that_fails_hurts_no_cell(kernel: Any) -> None:
    kernel.run("from comm import create_comm\nw = create_comm(target_name='widget', comm_id='w')\nw.on_msg(lambda m: 1 / 0)")
    say(kernel, {})
    assert kernel.run("print('well')").text() == "well\n"


def test_echoes_between_cells_are_not_kept(kernel: Any) -> None:
    kernel.run(WIDGET)
    code = (
        "def later():\n    done.wait()\n    while get_ipython().kernel._tee.attempt is not None: time.sleep(0.001)\n"
        "    widget.send({'method': 'echo_update', 'state': {}})\n    widget.send({'method': 'update', 'state': {}})\n"
        "    sent.set()\nimport time\ndone, sent = threading.Event(), threading.Event()\n"
        "thread = threading.Thread(target=later)\nthread.start()\ndone.set()"
    )
    kernel.run(code)
    output = kernel.run("sent.wait(60)")
    while "True" not in output.text() and not comm_data(output):
        output = kernel.run("print(sent.is_set())")
    assert comm_data(output) == [{"method": "update", "state": {}}]


@pytest.mark.parametrize("kind", ["execute_request", "comm_open"])
def test_nothing_else_is_taken_that_way(kernel: Any, kind: str) -> None:
    say(kernel, {}, kind=kind)
    kernel.state()
    assert f"no message to a widget: '{kind}'" in kernel.log
    assert kernel.run("print(1)").text() == "1\n"
