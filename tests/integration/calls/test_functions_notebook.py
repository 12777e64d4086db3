"""Remote functions in a notebook's cells."""

from __future__ import annotations

import re

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
    quick = notebook.run("for each in told.map(range(2)):\n    pass")
    assert quick.status[-1].startswith("✓ told · 2 calls in ")  # it stands above the texts
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
    assert (stopped.outputs[-1]["ename"], stopped.outputs[-1]["traceback"]) == (
        "KeyboardInterrupt",
        ["KeyboardInterrupt"],
    )
    assert notebook.run("results.status().state.value").outputs[-1]["data"]["text/plain"] == "'cancelled'"


def test_an_unchanged_cell_that_runs_again_finds_what_its_runner_has_loaded(notebook: Notebook) -> None:
    helper = "import os\n\nloaded = []\n\ndef model():\n    loaded or loaded.append('big')\n    return loaded"
    cell = """
import gpulayer as gl

@gl.remote
def grows(x):
    found = model()
    found.append(x)
    return os.getpid(), len(found), 1 / x
"""
    notebook.run(helper)
    notebook.run(cell)
    first = eval(notebook.run("grows(1)").outputs[-1]["data"]["text/plain"])
    notebook.run(helper + "\n# another end of the cell")
    again = notebook.run(cell + "grows(1)")
    assert eval(again.outputs[-1]["data"]["text/plain"]) == (first[0], first[1] + 1, 1.0)
    here, there = ("\n".join(notebook.run(call).outputs[-1]["traceback"]) for call in ("grows.local(0)", "grows(0)"))
    (number,) = re.findall(r"In\[(\d+)\], line 7\b", re.sub(r"\x1b\[[\d;]*m", "", here))
    assert f'File "cell {number}", line 7, in grows\n    return os.getpid(), len(found), 1 / x' in there


def test_what_no_machine_could_run_is_told_once(notebook: Notebook) -> None:
    notebook.run("import gpulayer as gl\n@gl.remote(worker='nobody')\ndef f(x):\n    return x")
    (refused,) = [each for each in notebook.run("f(1)").outputs if each["output_type"] == "error"]
    head, *table = refused["traceback"]
    assert re.fullmatch(r"gpulayer: no machine could run call \S+", head)
    assert "".join(table).count("nobody") == 1, table
