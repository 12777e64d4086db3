"""Remote functions in a notebook's cells."""

from __future__ import annotations

from tests.support.notebook import Notebook

DEFINED = """
import time
import gpulayer as gl

@gl.remote
def told(x):
    print("there", x)
    return x * 2

@gl.remote
def slow(x):
    time.sleep(0.15)
    return x

@gl.remote
def naps(x):
    time.sleep(600)

@gl.remote
def fails(x):
    y = 0
    return x / y
"""


def test_prints_results_progress_and_errors_are_the_cell_s(notebook: Notebook) -> None:
    notebook.run(DEFINED)
    said = notebook.run("told(4)")
    assert [each.get("text") or each["data"]["text/plain"] for each in said.outputs] == ["there 4\n", "8"]
    awaited = notebook.run("await told.aio(5)")
    assert awaited.outputs[-1]["data"]["text/plain"] == "10"
    mapped = notebook.run("list(slow.map(range(16)))")
    assert mapped.outputs[-1]["data"]["text/plain"] == str(list(range(16)))
    assert any("of 16" in line for line in mapped.status)
    assert mapped.status[-1].startswith("✓ slow · 16 calls in ")
    error = notebook.run("fails(3)").outputs[-1]
    assert (error["output_type"], error["ename"]) == ("error", "ZeroDivisionError")
    assert error["traceback"][-3:] == ["    return x / y", "           ~~^~~", "ZeroDivisionError: division by zero"]
    refused = notebook.run("told(object())").outputs[-1]
    assert len(refused["traceback"]) == 1
    assert refused["traceback"][0].startswith("gpulayer: told: args[0] is of type object")
    assert notebook.run("told").outputs[-1]["data"]["text/plain"] == "<gpulayer function told>"


def test_stop_ends_the_calls_there(notebook: Notebook) -> None:
    notebook.run(DEFINED)
    cell = notebook.start("results = naps.map(range(3))\nprint(results.id)\nlist(results)")
    cell.until(lambda cell: "." in cell.text())
    notebook.interrupt()
    stopped = cell.wait()
    assert stopped.outputs[-1]["ename"] == "KeyboardInterrupt"
    assert notebook.run("results.status().state.value").outputs[-1]["data"]["text/plain"] == "'cancelled'"
