"""Functions in a real notebook page: a map shows how far it is, its calls' prints and results; Stop ends it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.lab import Lab, saved_text
from tests.support.processes import until

CELL = """
import os
import time
import gpulayer as gl

@gl.remote
def wait_for(number, gate):
    print("call", number, "begins", flush=True)
    while number > 1 and not os.path.exists(gate):
        time.sleep(0.02)
    return number * 10
"""


def test_a_map_shows_how_far_it_is_and_stop_ends_it(opened: Callable[..., Any], lab: Lab, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    cell = f"print(list(wait_for.map(range(4), [{str(gate)!r}] * 4)))"
    notebook = opened(CELL, cell, cell.replace("gate'", "never'"))
    notebook.run(1)
    notebook.await_end(1)
    notebook.run(2)
    notebook.await_text(2, lambda text: "2 of 4" in text and "call 3 begins" in text, "half of the map")
    assert notebook.running(2)
    gate.touch()
    notebook.await_text(2, "[0, 10, 20, 30]")
    notebook.await_text(2, "✓ wait_for · 4 calls in ")
    notebook.await_end(2)
    notebook.run(3)
    notebook.await_text(3, "2 of 4")
    notebook.command("notebook:interrupt-kernel")
    notebook.await_text(3, "■ wait_for · cancelled after 2 calls")
    notebook.await_end(3)
    saved = notebook.save().cells[3]
    assert [output.ename for output in saved.outputs if output.output_type == "error"] == ["KeyboardInterrupt"]
    assert "map " in saved_text(saved)
    api = lab.deployment.api
    until(lambda: all(not job.calls.running for job in api.jobs() if job.calls is not None), "calls that were ended")
