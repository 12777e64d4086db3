"""What pages say to widgets: heard while a cell runs with ipykernel 7, after it with ipykernel 6."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.processes import until

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
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint(heard)"
    running = kernel.send(f"{WIDGET}print('ready')\n{wait}")
    kernel.wait(running, lambda: "ready" in running.text())
    say(kernel, {"a": 1})
    kernel.state()  # the control channel has taken what came before
    (kernel.cwd / "go").touch()
    kernel.wait(running, lambda: running.ended)
    assert running.text().endswith("[]\n")
    after(kernel, [({"a": 1}, {"version": "2"}, [])])


def after(kernel: Any, expected: list[Any]) -> None:
    """The next cell sees what was heard before it, or is heard in a moment."""
    assert "True True\n" in kernel.run(f"print(news.wait(60), heard == {expected!r})").text()


def test_between_cells_a_message_is_heard(kernel: Any) -> None:
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
    code = "from comm import create_comm\nw = create_comm(target_name='widget', comm_id='w')\nw.on_msg(lambda m: 1 / 0)"
    kernel.run(code)
    say(kernel, {})
    assert kernel.run("print('well')").text() == "well\n"


def test_what_is_said_between_cells_stands_in_the_next_but_for_echoes(kernel: Any) -> None:
    kernel.run(f"{WIDGET}import os\nheard_at = os.path.abspath('heard')")
    kernel.run(
        "def told(message):\n    widget.send({'method': 'echo_update', 'state': {}})\n    print('told between')\n"
        "    widget.send({'method': 'update', 'state': {}})\n    open(heard_at, 'w').close()\nwidget.on_msg(told)"
    )
    say(kernel, {})
    until((kernel.cwd / "heard").exists, "the message is heard")
    output = kernel.run("print('next')")
    assert comm_data(output) == [{"method": "update", "state": {}}]
    assert output.text() == "told between\nnext\n"


@pytest.mark.parametrize("kind", ["execute_request", "comm_open"])
def test_nothing_else_is_taken_that_way(kernel: Any, kind: str) -> None:
    say(kernel, {}, kind=kind)
    kernel.state()
    assert f"no message to a widget: '{kind}'" in kernel.log
    assert kernel.run("print(1)").text() == "1\n"
