"""Widgets of a cell on a worker hear what the page says, while the cell runs and, in a session, after it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.conftest import FILES
from tests.support.deployment import Deployment
from tests.support.notebook import Cell, Notebook
from tests.support.processes import until

pytest.importorskip("ipywidgets")

PYTHON6 = os.environ.get("GPULAYER_TEST_IPYKERNEL6", "")

SLIDER = """
import threading
from ipywidgets import IntSlider
moved = threading.Event()
slider = IntSlider(3)
def told(change):
    print("moved to", change["new"])
    moved.set()
slider.observe(told, "value")
display(slider)
print("ready")
"""
WAIT = "print('in time' if moved.wait(60) else 'never', slider.value)\n"


@pytest.fixture(scope="module")
def here(shared: Deployment) -> Iterator[Notebook]:
    notebook = shared.notebook(FILES)
    yield notebook
    notebook.close()


@pytest.fixture(scope="module")
def page(here: Notebook) -> str:
    """The subshell by which a page speaks to widgets."""
    version = here.run("import ipykernel\nprint(ipykernel.version_info[0])").text()
    if int(version) < 7:
        pytest.skip("ipykernel 6 has no subshells")
    return here.create_subshell()


def slider_of(cell: Cell) -> str:
    """The slider's comm, once the cell has shown it."""
    return next(
        message["comm_id"]
        for message in cell.out.comms
        if (message.get("data") or {}).get("state", {}).get("_model_name") == "IntSliderModel"
    )


def moved_to(cell: Cell, slider: str) -> list[int]:
    """The values that the remote slider has told the page."""
    return [
        message["data"]["state"]["value"]
        for message in cell.out.comms
        if message["comm_id"] == slider
        and message["kind"] == "comm_msg"
        and "value" in message["data"].get("state", {})
    ]


def test_a_slider_that_is_moved_while_the_cell_runs_is_moved_there(here: Notebook, page: str) -> None:
    cell = here.start(f"%%gpulayer{SLIDER}{WAIT}")
    cell.until_text("ready")
    slider = slider_of(cell)
    here.send_comm(slider, {"method": "update", "state": {"value": 8}, "buffer_paths": []}, subshell=page)
    result = cell.wait()
    assert "moved to 8\n" in result.text()  # what a handler prints stands in the cell that runs
    assert "in time 8\n" in result.text()
    assert moved_to(cell, slider) == [8]  # the remote widget's own word for it
    [answer] = here.tell_comm(slider, {"method": "request_state"})
    assert answer["data"]["state"]["value"] == 8


def test_what_a_handler_raises_is_shown_and_ends_no_cell(here: Notebook, page: str) -> None:
    code = (
        "import threading\nfrom ipywidgets import Button\nclicked = threading.Event()\nbutton = Button()\n"
        "def click(_):\n    clicked.set()\n    1 / 0\n"
        "button.on_click(click)\ndisplay(button)\nprint('ready')\nprint('in time', clicked.wait(60))\n"
        "import os\nwhile not os.path.exists(GO):\n    threading.Event().wait(0.05)\n    print('on')"
    )
    go = here.folder / "clicked"
    cell = here.start(f"%%gpulayer\nGO = {str(go)!r}\n{code}")
    cell.until_text("ready")
    button = next(
        message["comm_id"]
        for message in cell.out.comms
        if (message.get("data") or {}).get("state", {}).get("_model_name") == "ButtonModel"
    )
    here.send_comm(button, {"method": "custom", "content": {"event": "click"}}, subshell=page)
    cell.until(lambda cell: any(output["output_type"] == "error" for output in cell.out.outputs))
    go.touch()
    result = cell.wait()
    assert result.ok
    assert "in time True" in result.text()
    assert result.error is not None
    assert result.error["ename"] == "ZeroDivisionError"


def test_in_a_session_a_slider_of_an_ended_cell_is_moved_too(here: Notebook) -> None:
    cell = here.start(f"%%gpulayer --session sliders{SLIDER}")
    assert cell.wait().ok
    here.tell_comm(slider_of(cell), {"method": "update", "state": {"value": 9}, "buffer_paths": []})
    after = here.run(f"%%gpulayer --session sliders\n{WAIT}")
    assert "in time 9\n" in after.text()
    assert "moved to 9\n" in after.text()  # printed while no cell ran, it stands in the next one


def test_what_is_too_large_for_the_way_is_said_and_the_notebook_works_on(here: Notebook) -> None:
    cell = here.start(f"%%gpulayer --session sliders{SLIDER}")
    assert cell.wait().ok
    told = Cell(here, here.send_comm(slider_of(cell), {"method": "custom", "content": "x" * 1_100_000}))
    for _ in told:
        pass
    assert "1.1 MB for a widget on a worker is too much: 1.0 MB at most" in told.text("stderr")
    assert here.run("%%gpulayer --session sliders\nprint(slider.value)").text() == "3\n"


@pytest.mark.skipif(not PYTHON6, reason="GPULAYER_TEST_IPYKERNEL6 names no interpreter that has ipykernel 6")
def test_with_ipykernel_6_there_it_waits_for_the_cells_end(page: str, here: Notebook, shared: Deployment) -> None:
    six = shared.worker("six", python=PYTHON6, warm=0)
    go = here.folder / "waited"
    try:
        until(lambda: shared.connected("six"), "the worker comes")
        code = (
            "import os, time\nfrom comm import create_comm\nheard = []\n"
            "w = create_comm(target_name='mine', comm_id='six')\n"
            "w.on_msg(lambda message: heard.append(message['content']['data']))\nprint('ready')\n"
            f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint(heard)"
        )
        cell = here.start(f"%%gpulayer --session old --worker six\n{code}")
        cell.until_text("ready")
        here.send_comm("six", {"a": 1}, subshell=page)
        go.touch()
        assert cell.wait().text() == "ready\n[]\n"
        look = "%%gpulayer --session old --worker six\nprint(heard)"
        until(lambda: here.run(look).text() == "[{'a': 1}]\n", "the message is heard")
    finally:
        here.run("%gpulayer release old")  # a session of a worker that is gone would hold its slot for ever
        until(lambda: all(session.name != "old" for session in shared.api.sessions()), "the session's end")
        six.stop()
