"""What a cell shows when it ran on a worker: the same as when it ran here."""

from __future__ import annotations

import pytest

from tests.support.deployment import Deployment
from tests.support.notebook import Notebook, Result, comparable
from tests.support.processes import until

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

SAME = {
    "a result": "1 + 1",
    "a result that is held back": "1 + 1;",
    "a statement": "x = 1",
    "comments": "# nothing\n# to do",
    "a blank cell": "",
    "unicode": "print('héllo ✓ 日本')\n'\\ud800'",
    "HTML": "from IPython.display import HTML, display\ndisplay(HTML('<b>bold</b>'))\nHTML('<i>last</i>')",
    "a PNG": f"import base64\nfrom IPython.display import Image\nImage(data=base64.b64decode('{PNG}'))",
    "Markdown, JSON, LaTeX": "from IPython.display import *\ndisplay(Markdown('*m*'), JSON({'a': 1}), Latex('$l$'))",
    "an object with its own HTML": "class R:\n    def _repr_html_(self):\n        return '<p>'\n\n\nR()",
    "an updated display": "h = display('one', display_id=True)\nprint('between')\nh.update('two')",
    "a cleared output": "from IPython.display import clear_output\nprint('a')\nclear_output()\nprint('b')",
    "an output that replaces another": (
        "from IPython.display import clear_output\nprint('a')\nclear_output(wait=True)\nprint('b')"
    ),
    "an error": "1 / 0",
    "an error in a function": "def f(n):\n    return 1 / n\n\n\nfor n in (1, 0):\n    f(n)",
    "an error in a module": "import train\n\ntrain.step(0)",
    "an error that was caused by another": "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError('k') from e",
    "an error of a class of its own": "class Mine(Exception):\n    pass\n\n\nraise Mine('so')",
    "an error in a coroutine": "async def f():\n    raise ValueError('in f')\n\n\nawait f()",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "a syntax error": "x = 1\ndef f(:\n    pass",
    "top-level await": "import asyncio\nawait asyncio.sleep(0)\nprint('after')\n'result'",
    "a shell line": "!echo hi; exit 3\n_exit_code",
    "%pip": "%pip --version",
    "another cell magic": "%%bash\necho from bash\nexit 2",
    "input": "input('name? ')",
    "a warning": "import warnings\nwarnings.warn('careful')",
    "logging": "import logging\nlogging.warning('careful')",
    "a module beside the notebook": "import train\ntrain.LR",
}


def run_both(notebook: Notebook, stock: Notebook, code: str) -> tuple[Result, Result]:
    """The same cell here and there. Here the magic's line is a comment, so that line numbers agree."""
    local = code if code.startswith("%%") else f"# %%gpulayer \n{code}"
    return notebook.run(f"%%gpulayer\n{code}\n"), stock.run(local)


@pytest.mark.parametrize("code", SAME.values(), ids=SAME.keys())
def test_a_cell_shows_what_it_shows_here(notebook: Notebook, stock: Notebook, code: str) -> None:
    there, here = run_both(notebook, stock, code)
    assert comparable(there) == comparable(here)
    assert (there.ok, there.idle) == (here.ok, True)
    assert there.status[-1].startswith("✓ done on alpha" if here.ok else "✗ failed on alpha")


def test_stdout_and_stderr_come_in_the_order_in_which_they_were_written(notebook: Notebook) -> None:
    code = "import sys\nfor n in range(3):\n    print('out', n)\n    print('err', n, file=sys.stderr)"
    outputs = notebook.run(f"%%gpulayer\n{code}").outputs
    assert [(o["name"], o["text"]) for o in outputs] == [
        (name, f"{name[3:]} {n}\n") for n in range(3) for name in ("stdout", "stderr")
    ]


def test_output_of_all_kinds_keeps_its_order(notebook: Notebook) -> None:
    code = "from IPython.display import HTML\nprint('a')\ndisplay(HTML('b'))\nprint('c')\ndisplay(HTML('d'))\n'e'"
    outputs = notebook.run(f"%%gpulayer\n{code}").outputs
    assert [o["output_type"] for o in outputs] == ["stream", "display_data", "stream", "display_data", "execute_result"]


def test_output_comes_while_the_cell_runs(notebook: Notebook) -> None:
    """Before the cell's end: the cell waits for a file that is made once its first line is here."""
    go = notebook.folder.parent / "go"
    cell = notebook.start(f"%%gpulayer\nimport os, time\nprint('one')\nwhile not os.path.exists({str(go)!r}):\n"
                          "    time.sleep(0.01)\nprint('two')")  # fmt: skip
    cell.until_text("one\n")
    assert not cell.idle
    go.touch()
    assert cell.wait().text() == "one\ntwo\n"


def test_an_error_names_the_notebooks_own_cell_and_line(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer --timeout 1min\n\na = 1\nb = a / 0")
    assert f"Cell In[{result.execution_count}], line 4" in result.traceback
    assert "1 # %%gpulayer --timeout 1min" in result.traceback  # the context counts the magic's line too
    assert result.error is not None
    assert (result.error["ename"], result.error["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert "gpulayer/" not in result.traceback  # none of our own frames


def test_a_result_carries_the_notebooks_execution_count(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer\n40 + 2")
    assert [o["execution_count"] for o in result.outputs] == [result.execution_count]


def test_the_exit_of_the_interpreter_is_an_error_as_here(notebook: Notebook, stock: Notebook) -> None:
    """Here and there a warning comes too, once for each kernel."""
    there, here = run_both(notebook, stock, "print('before')\nraise SystemExit(3)")
    assert not there.ok
    errors = [[o for o in comparable(each) if o["output_type"] == "error"] for each in (there, here)]
    assert errors[0] == errors[1]
    assert (there.error or {})["ename"] == "SystemExit"
    assert there.text() == "before\n"


def test_an_empty_cell_says_what_ipython_says(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer")
    assert not result.ok
    assert "the cell body is empty" in result.text("stderr") + result.traceback


def test_input_is_refused_in_one_plain_line(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer\ninput('name? ')")
    assert result.traceback.splitlines()[-1].endswith("this frontend does not support input requests.")


def test_threads_print_into_their_cell(notebook: Notebook) -> None:
    code = (
        "import threading\nts = [threading.Thread(target=print, args=(f'thread {n}',)) for n in range(4)]\n"
        "[t.start() for t in ts]\n[t.join() for t in ts];"
    )
    result = notebook.run(f"%%gpulayer\n{code}")
    assert "".join(sorted(result.text())).replace("\n", "") == "".join(sorted("thread " * 4 + "0123"))


def test_programs_print_into_their_cell(notebook: Notebook) -> None:
    code = "import subprocess\nsubprocess.run(['sh', '-c', 'echo out; echo err >&2']).returncode"
    result = notebook.run(f"%%gpulayer\n{code}")
    assert (result.text(), result.text("stderr")) == ("out\n", "err\n")
    assert result.data("text/plain") == ["0"]


def test_bytes_that_are_no_text_are_shown_as_replacements(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer\nimport os\nos.write(1, b'caf\\xe9\\n');")
    assert result.text() == "caf�\n"


def test_a_forked_childs_line_comes_once(notebook: Notebook) -> None:
    code = (
        "import os, sys\nprint('before')\npid = os.fork()\nif pid == 0:\n    print('child')\n    sys.stdout.flush()\n"
        "    os._exit(0)\nos.waitpid(pid, 0)\nprint('after')"
    )
    result = notebook.run(f"%%gpulayer\n{code}")
    # the child writes its line's end by itself: what its parent prints meanwhile may come before that
    assert sorted(result.text().replace("child", " child ").split()) == ["after", "before", "child"]


def test_multiprocessing_children_print_once_each(notebook: Notebook) -> None:
    code = """\
import multiprocessing as mp
processes = [mp.get_context('fork').Process(target=print, args=(f'child-{n}',)) for n in range(3)]
for process in processes:
    process.start()
for process in processes:
    process.join()
print('parent')
"""
    result = notebook.run(f"%%gpulayer\n{code}")
    assert sorted(result.text().replace("child", " child").replace("parent", " parent").split()) == [
        "child-0", "child-1", "child-2", "parent"  # each prints its line's end by a write of its own
    ]  # fmt: skip


def test_a_line_of_10_mb_arrives_whole_when_it_is_asked_for(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer --max-output 20MB\nprint('x' * 10_000_000, end='!')")
    assert result.text() == "x" * 10_000_000 + "!"


def test_of_200_mb_head_and_tail_are_shown_and_all_is_kept(deployment: Deployment, notebook: Notebook) -> None:
    code = "line = 'x' * 99 + '\\n'\nfor n in range(200):\n    print(f'block {n}')\n    print(line * 10_000, end='')"
    result = notebook.run(f"%%gpulayer\n{code}", timeout_s=110)
    shown = result.text()
    # the cell ends a commit before its job does
    until(lambda: deployment.api.jobs(limit=1)[0].terminal, "the job's end")
    job = deployment.api.jobs(limit=1)[0]
    assert shown.startswith("block 0\n")
    assert shown.endswith("x\n")
    assert len(shown) < 1_100_000
    assert f"left out here: the whole is in job {job.id}" in shown
    assert f"%gpulayer attach {job.id}" in shown
    stream = next(deployment.data.glob(f"streams/*/{job.attempt}.stream"))
    assert stream.stat().st_size == job.end_offset
    assert stream.read_bytes().count(b"x") >= 200 * 10_000 * 99
    assert all(f"block {n}\\n".encode() in stream.read_bytes() for n in (0, 100, 199))


def test_the_status_is_one_line_that_tells_the_whole_way(notebook: Notebook) -> None:
    # of states that come together only the last is shown: beta has no warm kernel, so that to start takes its time
    go = notebook.folder.parent / "go-on"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)"
    cell = notebook.start(f"%%gpulayer --worker beta\n{code}")
    for state in ("◐ starting on beta", "● running on beta"):
        cell.until(lambda cell: any(line.startswith(state) for line in cell.out.status))  # noqa: B023 - called at once
    go.touch()
    result = cell.wait()
    assert result.status[-1].startswith("✓ done on beta in ")
    assert all("\n" not in line for line in result.status)


def test_a_cell_has_its_own_environment_and_no_credential(deployment: Deployment, notebook: Notebook) -> None:
    token = deployment.plane.endpoint.token
    result = notebook.run("%%gpulayer\nimport os\nprint(dict(os.environ))")
    assert token not in result.text()
    assert "'GPULAYER_JOB'" in result.text()
    assert "GPULAYER_DATA" not in result.text()
    assert "GPULAYER_TOKEN" not in result.text()


def test_the_cell_runs_in_a_copy_of_the_folder(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer\nimport os\nopen('made.txt', 'w').close()\nsorted(os.listdir())")
    assert result.data("text/plain") == ["['made.txt', 'train.py']"]
    assert not (notebook.folder / "made.txt").exists()


def test_state_is_fresh_in_every_cell(notebook: Notebook) -> None:
    notebook.run("%%gpulayer\nkept = 1")
    assert (notebook.run("%%gpulayer\nkept").error or {})["ename"] == "NameError"
