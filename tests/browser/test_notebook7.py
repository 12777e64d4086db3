"""The same in Notebook 7: the magics, the panel, attach at the cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.support.lab import Lab, NotebookPage
from tests.support.processes import PATIENCE_S

WAIT = """%%gpulayer
import os, time
print("begun", flush=True)
while not os.path.exists({gate!r}):
    time.sleep(0.02)
print("over")"""


def test_a_cell_the_panel_and_attach(new_lab: Callable[..., Lab], page: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    lab = new_lab(app="notebook")
    path = lab.notebook("seven", "%load_ext gpulayer", WAIT.format(gate=str(gate)))
    notebook = NotebookPage(page, lab, path).open()
    notebook.run(0)
    notebook.await_end(0)
    notebook.save()
    notebook.run(1)
    notebook.await_text(1, "begun")
    notebook.reload()
    notebook.command("gpulayer:open-panel")
    expect(page.locator('#gpulayer-panel [data-worker="laptop"]')).to_be_visible(timeout=PATIENCE_S * 1000)
    notebook.cell(1).locator(".gpulayer-CellBar").get_by_role("button", name="attach", exact=True).click()
    notebook.await_text(1, "begun")
    gate.touch()
    notebook.await_text(1, "done on laptop")
    assert "over" in notebook.text(1)
