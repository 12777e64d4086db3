"""One execute request is one attempt: what it asks for, what is refused, and whose output is whose."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpulayer.protocol.records import Kind
from gpulayer.protocol.spool import SpoolReader


def result(output: Any) -> Any:
    """The value of a cell whose last line is JSON text."""
    [content] = [content for kind, content, _ in output.messages if kind == "execute_result"]
    return json.loads(content["data"]["text/plain"].strip("'"))


def test_an_exception_is_an_error_message_and_a_reply(kernel: Any) -> None:
    output = kernel.run("x = 1\n\n1 / 0", execution_count=7)
    name, traceback = output.error()
    assert name == "ZeroDivisionError"
    assert "Cell In[7], line 3" in traceback
    reply = output.reply
    assert reply["peak_rss_bytes"] > 10 << 20
    del reply["peak_rss_bytes"]
    assert reply == {"status": "error", "ename": name, "evalue": "division by zero", "execution_count": 7}
    assert output.order[-3:] == ["error", "REPLY", "status"]


def test_the_reply_of_a_cell_that_succeeds(kernel: Any) -> None:
    reply = kernel.run("None", execution_count=12).reply
    assert (reply["status"], reply["ename"], reply["evalue"], reply["execution_count"]) == ("ok", None, None, 12)


def test_the_text_of_an_exception_is_cut_in_the_reply_only(kernel: Any) -> None:
    output = kernel.run("raise ValueError('x' * 100_000 + '\\udcff')")
    assert output.reply["evalue"] == "x" * 4000
    assert output.messages[-2][1]["evalue"] == "x" * 100_000 + "\ufffd"


def test_in_and_out_have_the_notebooks_numbers(kernel: Any) -> None:
    kernel.run("'first'", execution_count=30)
    output = kernel.run("In[30], Out[30], In[31][:2]", execution_count=31)
    assert output.messages[-2][1]["data"]["text/plain"] == "(\"'first'\", 'first', 'In')"
    assert output.messages[-2][1]["execution_count"] == 31


def test_a_syntax_error_has_the_notebooks_number(kernel: Any) -> None:
    _, traceback = kernel.run("x = 1\nif", execution_count=9).error()
    assert "Cell In[9], line 2" in traceback


def test_folder_and_environment_are_set_before_the_cell(kernel: Any, tmp_path: Path) -> None:
    (tmp_path / "local_module.py").write_text("value = 5")
    code = "import json, os, local_module\njson.dumps([os.getcwd(), os.environ.get('GPL_A'), os.environ.get('GPL_B')])"
    output = kernel.run(code, cwd=str(tmp_path), env={"GPL_A": "1", "GPL_B": "2"})
    assert result(output) == [str(tmp_path), "1", "2"]
    output = kernel.run(code, cwd=str(tmp_path), env={"GPL_A": None, "GPL_B": "3"})
    assert result(output) == [str(tmp_path), None, "3"]
    kernel.run("", env={"GPL_B": None})


def test_a_module_that_comes_between_cells_is_found(kernel: Any) -> None:
    kernel.run("import importlib.util\nassert importlib.util.find_spec('late_module') is None")
    (kernel.cwd / "late_module.py").write_text("value = 6")
    assert kernel.run("import late_module\nlate_module.value").reply["status"] == "ok"


def test_a_cell_that_moves_stays_there_until_another_folder_is_asked_for(kernel: Any, tmp_path: Path) -> None:
    kernel.run(f"import os, json\nos.chdir({str(tmp_path)!r})")
    assert result(kernel.run("json.dumps(os.getcwd())")) == str(tmp_path)
    (tmp_path / "other").mkdir()
    assert result(kernel.run("json.dumps(os.getcwd())", cwd=str(tmp_path / "other"))) == str(tmp_path / "other")
    assert result(kernel.run("json.dumps(os.getcwd())")) == str(kernel.cwd)


def test_a_folder_that_is_not_there_is_an_error_of_the_cell(kernel: Any) -> None:
    output = kernel.run("print('not run')", cwd="/nowhere/at/all")
    assert output.error()[0] == "FileNotFoundError"
    assert "/nowhere/at/all" in output.reply["evalue"]
    assert output.order == ["status", "error", "REPLY", "status"]
    assert kernel.run("1").reply["status"] == "ok"


def test_users_modules_never_meet_ours(kernel: Any) -> None:
    for name in ("tee", "kernel", "records", "request", "main"):
        (kernel.cwd / f"{name}.py").write_text(f"value = 'user {name}'")
    output = kernel.run("""
import json, sys, tee, kernel, records, request, main
json.dumps({
    "values": [module.value for module in (tee, kernel, records, request, main)],
    "first": sys.path[0], "argv": sys.argv,
    "ours": sorted(name for name in sys.modules if name == "gpulayer" or name.startswith("gpulayer.")),
    "folders": [path for path in sys.path if "gpulayer_worker" in path],
})
""")
    found = result(output)
    assert found["values"] == [f"user {name}" for name in ("tee", "kernel", "records", "request", "main")]
    assert (found["first"], found["argv"], found["ours"], found["folders"]) == ("", [""], [], [])


def test_input_is_refused_plainly(kernel: Any) -> None:
    name, traceback = kernel.run("input('name?')").error()
    assert name == "StdinNotImplementedError"
    assert "does not support input requests" in traceback


def test_the_same_attempt_runs_once(kernel: Any) -> None:
    first = kernel.run("runs = globals().get('runs', 0) + 1", attempt="twice")
    size = sum(path.stat().st_size for path in first.folder.iterdir())
    kernel.send("runs = 100", attempt="twice")
    assert kernel.run("runs").messages[-2][1]["data"]["text/plain"] == "1"
    assert sum(path.stat().st_size for path in first.folder.iterdir()) == size


def test_the_state_names_what_runs_and_what_has_run(kernel: Any) -> None:
    kernel.run("1", attempt="earlier")
    with kernel.failpoint("kernel.first-byte") as point:
        output = kernel.send("print('x')", attempt="running")
        point.await_hit()
        state = kernel.state()
        assert state["current"] == "running"
        assert state["done"][-1] == "earlier"
        point.release()
        kernel.wait(output, lambda: output.ended)
    assert kernel.state()["done"][-1] == "running"
    assert kernel.state()["current"] is None


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"metadata": False}, "runs GPUlayer's attempts only"),
        ({"spool": "relative"}, "has to be an absolute path"),
        ({"spool": "/proc/nowhere/x"}, "the spool cannot be written"),
        ({"env": ["A=1"]}, "gpulayer.env is ['A=1']; it has to be a dict"),
        ({"reserve_bytes": "much"}, "gpulayer.reserve_bytes is 'much'; it has to be a int"),
    ],
)
def test_what_is_no_attempt_is_refused_with_a_reason(fresh: Any, asked: dict[str, Any], why: str) -> None:
    fresh.start().send("open('ran', 'w')", attempt="refused", **asked)
    reply = fresh.reply()
    assert reply["msg_type"] == "execute_reply"
    assert (reply["content"]["status"], reply["content"]["ename"]) == ("error", "Refused")
    assert why in reply["content"]["evalue"]
    assert fresh.run("import os\nassert not os.path.exists('ran')").reply["status"] == "ok"
    assert "refused" not in fresh.state()["done"]


LATE = """
import threading
def late():
    go.wait()
    print({text})
    done.set()
go, done = threading.Event(), threading.Event()
threading.Thread(target=late).start()
"""


def test_late_output_of_a_thread_is_the_next_cells(kernel: Any) -> None:
    first = kernel.run(LATE.format(text="'late'"))
    second = kernel.run("print('now')\ngo.set(); _ = done.wait()")
    assert first.read().text() == ""
    assert second.text() == "now\nlate\n"
    assert {parent for _, _, parent in second.messages} == {second.attempt}


BETWEEN = """
import threading, sys
from IPython.display import display
def between(tee=get_ipython().kernel._tee):
    while tee.attempt is not None:
        pass
    {what}
    sys.stdout.flush()
    open("done", "w").close()
threading.Thread(target=between).start()
"""


def print_between_cells(kernel: Any, what: str) -> Any:
    """The output of a cell before which a thread did `what` while no cell ran."""
    done = kernel.cwd / "done"
    first = kernel.run(BETWEEN.format(what=what))
    kernel.wait(first, done.exists)
    done.unlink()
    assert first.read().order[-1] == "status"
    return kernel.run("print('next')")


def test_output_between_cells_stands_at_the_head_of_the_next(kernel: Any) -> None:
    output = print_between_cells(kernel, "print('between'); display('shown')")
    assert output.text() == "between\nnext\n"
    kinds = [kind for kind, _ in itertools.groupby(output.order)]  # the kernel may flush a line in two parts
    assert kinds[:3] == ["stream", "display_data", "status"]
    assert output.order[-2:] == ["REPLY", "status"]


def test_output_between_cells_is_bounded_and_counted(kernel: Any) -> None:
    output = print_between_cells(kernel, "[(print('x' * 99_999 + '\\n', end='', flush=True)) for _ in range(5)]")
    [mark] = [value for kind, value in output.others if kind == Kind.MARK]
    assert output.text() == ("x" * 99_999 + "\n") * 2 + "next\n"
    assert (mark["mark"], mark["records"], mark["bytes"] > 300_000) == ("dropped", 3, True)
    assert output.order[:3] == ["stream", "stream", "MARK"]


def test_what_the_kernel_said_before_the_first_attempt_is_nobodys(fresh: Any) -> None:
    output = fresh.start().run("1")
    assert output.order[0] == "status"
    assert output.messages[0][1] == {"execution_state": "busy"}


def test_a_cell_after_a_failed_one_is_run(kernel: Any) -> None:
    first, second = kernel.send("1/0"), kernel.send("print('runs')")
    kernel.wait(second, lambda: second.ended)
    assert first.read().ended
    assert second.text() == "runs\n"


def test_a_full_disk_holds_the_kernel_which_still_answers(fresh: Any) -> None:
    output = fresh.start().send("print('x')", attempt="blocked", reserve_bytes=1 << 60)
    reader = SpoolReader(output.folder)
    fresh.wait(output, reader.blocked)
    blocked = reader.blocked()
    assert blocked is not None
    assert blocked["reserve_bytes"] == 1 << 60
    assert 0 < blocked["free_bytes"] < 1 << 60
    assert fresh.state() == {"current": None, "done": []}
    assert output.order == []


def test_the_owners_profile_is_not_the_notebooks(fresh: Any, tmp_path: Path) -> None:
    startup = tmp_path / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "a.py").write_text("leaked = 1")
    (tmp_path / "profile_default" / "ipython_config.py").write_text("c.InteractiveShellApp.exec_lines = ['leaked = 2']")
    fresh.env["IPYTHONDIR"] = str(tmp_path)
    output = fresh.start().run("'leaked' in globals()")
    assert output.messages[-2][1]["data"]["text/plain"] == "False"
    assert not (tmp_path / "profile_default" / "history.sqlite").exists()


def test_a_connection_file_that_is_not_there_is_named(fresh: Any) -> None:
    os.unlink(fresh.folder / "connection.json")
    assert fresh.start().end() == 2
    assert f"there is no connection file {fresh.folder / 'connection.json'}" in fresh.log
