"""Widgets of a cell on a worker hear what the page says, while the cell runs and, in a session, after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conftest import FILES
from tests.support.deployment import Deployment
from tests.support.notebook import Cell, Notebook

pytest.importorskip("ipywidgets")

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
