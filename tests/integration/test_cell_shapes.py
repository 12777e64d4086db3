"""Every cell shape: what a cell shows on a worker is what it shows in a stock local kernel.

The shapes stand in `cells/`, whose README says how to add one. What is meant to differ has a test of its own here.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpulayer_worker.environ import allowed
from tests.integration.conftest import FILES
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook, Outputs, normalised

CELLS = Path(__file__).with_name("cells")
SAMPLE = {"ours": 3, "ipykernel6": 20}  # of which kernel's cases each n-th is in `make test`; `make test-all` runs all
PYTHON6 = os.environ.get("GPULAYER_TEST_IPYKERNEL6", "")
_LATE_S = 2.0  # a stock kernel may send output after idle; waited for only where it differs
_PAYLOADS = ("page", "set_next_input")  # what a reply asks a front end to show; `ask_exit` is the worker's own
_SESSIONS = itertools.count()  # no shape finds another's names
_KEYS = {"compare", "first", "needs", "fault"}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Cells that have to show the same here and there; more than one share a session."""

    name: str
    cells: list[str]
    options: dict[str, str] = field(default_factory=dict)  # see cells/README.md


def read_shapes(path: Path) -> Iterator[Shape]:
    """The shapes of a file. Raises ValueError for an option that there is not."""
    for text in re.split(r"^# %% ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name, _, rest = text.partition("\n")
        head = re.match(r"(#: .*\n)*", rest)
        assert head is not None
        options = {}
        for line in head[0].splitlines():
            key, _, options[key] = line.removeprefix("#: ").partition(": ")
            if key not in _KEYS:
                raise ValueError(f"{path}: {name}: there is no option {key!r}; one of {', '.join(sorted(_KEYS))}")
        cells = re.split(r"^# %%\+\n", rest[head.end() :], flags=re.MULTILINE)
        cells = [*(cell.removesuffix("\n") for cell in cells[:-1]), cells[-1].rstrip("\n")]
        yield Shape(name=name, cells=cells, options=options)


@functools.lru_cache
def has(kernel: str, module: str) -> bool:
    """Whether the kernel's interpreter has a module."""
    python = PYTHON6 if kernel == "ipykernel6" else sys.executable
    if not python:
        return False  # these are skipped as a whole
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", look], check=False).returncode == 0


def cases() -> list[Any]:
    """Each shape with each kernel; in `make test` a sample of them, the same every time."""
    everything = os.environ.get("GPULAYER_TEST_ALL") == "1"
    found = []
    shapes = [(path.stem, shape) for path in sorted(CELLS.glob("*.ipy")) for shape in read_shapes(path)]
    for kernel, part in SAMPLE.items():
        for family, shape in shapes if everything else shapes[::part]:
            marks: list[pytest.MarkDecorator] = []
            needs = shape.options.get("needs")
            if needs and not has(kernel, needs):
                marks.append(pytest.mark.skip(reason=f"{needs} is not installed for {kernel}"))
            if "fault" in shape.options:
                marks.append(pytest.mark.xfail(strict=True, reason=shape.options["fault"]))
            found.append(pytest.param(kernel, shape, marks=marks, id=f"{kernel} {family}: {shape.name}"))
    return found


# ---------------------------------------------------------------- the local kernels


class Stage:
    """A notebook whose cells run on a worker, and stock kernels of the same interpreter to compare with.

    Each shape has a fresh stock kernel, as each cell has on a worker, in the environment that a worker's kernels start
    in. The next one is being started while one is used.
    """

    def __init__(self, deployment: Deployment, notebook: Notebook, python: str):
        self.notebook = notebook
        self.deployment = deployment
        self._python = python
        self._numbers = itertools.count(1000)
        self._next: Notebook | None = None

    def take(self) -> Notebook:
        """A fresh kernel, in a folder of its own with the notebook's files; the taker closes it."""
        local = self._next or self._launch()
        self._next = self._launch()
        local.await_ready()
        return local

    def tidy(self) -> None:
        """Leave no session, and no cell that runs."""
        api = self.deployment.api
        for session in api.sessions():
            api.release(session.name)
        if self.notebook.busy:
            for job in api.jobs(limit=5):
                if not job.terminal:
                    api.cancel(job.id)
            self.notebook.start_kernel()
            self.notebook.run("%load_ext gpulayer")

    def close(self) -> None:
        """End the kernel that nobody took."""
        if self._next is not None:
            self._next.close()

    def _launch(self) -> Notebook:
        number = next(self._numbers)
        folder = self.deployment.folder / f"n{number}"
        folder.mkdir()
        for name, text in FILES.items():
            (folder / name).write_text(text)
        env = allowed(self.deployment.env) | {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}  # as kernels.kernel_environ
        local = Notebook(folder, env, runtime=self.deployment.folder / f"k{number}", python=self._python)
        self.deployment.notebooks.append(local)  # whatever happens, it ends with the deployment
        local.launch()
        return local


@pytest.fixture(scope="module")
def stage(shared: Deployment, shared_notebook: Notebook) -> Iterator[Stage]:
    """Kernels of our own interpreter."""
    stage = Stage(shared, shared_notebook, sys.executable)
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def old_stage() -> Iterator[Stage]:
    """Kernels of an ipykernel 6, on a worker of their own."""
    if not PYTHON6:
        pytest.skip("GPULAYER_TEST_IPYKERNEL6 names no interpreter that has ipykernel 6")
    with Deployment() as deployment:
        deployment.plane.start()
        deployment.worker("alpha", slots=2, warm=2, python=PYTHON6)
        yield Stage(deployment, deployment.notebook(FILES), PYTHON6)


@pytest.fixture
def local(stage: Stage) -> Iterator[Notebook]:
    """A fresh local kernel."""
    local = stage.take()
    yield local
    local.close()


# ---------------------------------------------------------------- comparing


def shown(out: Outputs, reply: dict[str, Any], compare: str) -> dict[str, Any]:
    """All that a front end gets of a cell, in a form that compares."""
    payloads = [each for each in reply.get("payload", []) if each["source"] in _PAYLOADS]
    outputs = out.joined()
    seen: dict[str, Any] = {"outputs": outputs, "comms": out.comms, "payloads": payloads, "status": reply["status"]}
    if compare:
        streams: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), "")
        for output in outputs:
            if output["output_type"] == "stream":
                streams[output["name"]] += output["text"]
        rest = [output for output in outputs if output["output_type"] != "stream"]
        texts: dict[str, Any] = {name: sorted(text.splitlines(keepends=True)) for name, text in streams.items()}
        seen["outputs"] = (texts if compare == "lines" else streams) | {"rest": rest}
    return normalised(seen)


def show_the_same(shape: Shape, notebook: Notebook, local: Notebook) -> None:
    """Run a shape's cells on a worker and here, and compare."""
    compare = shape.options.get("compare", "")
    options = f"--session s{next(_SESSIONS)}" if len(shape.cells) > 1 else ""
    there, here = [], []
    for code in shape.cells:
        cell = notebook.start(f"%%gpulayer {options}\n{code}")
        there.append((cell, cell.wait().reply))
    for code in shape.cells:
        bare = "first" in shape.options or code.startswith("%%")
        cell = local.start(code if bare else f"# %%gpulayer {options}\n{code}")
        here.append((cell, cell.wait().reply))
    expected = [shown(cell.out, reply, compare) for cell, reply in there]
    for (cell, reply), wanted in zip(here, expected, strict=True):
        cell.settle(lambda cell: shown(cell.out, reply, compare) == wanted, _LATE_S)  # noqa: B023 - called at once
    actual = [shown(cell.out, reply, compare) for cell, reply in here]
    assert expected == actual, difference(actual, expected)


def difference(local: Any, remote: Any) -> str:
    """What differs, line by line."""
    here, there = (json.dumps(each, indent=1, ensure_ascii=False).splitlines() for each in (local, remote))
    return "\n".join(difflib.unified_diff(here, there, "local", "on a worker", lineterm="", n=1))[:10_000]


@pytest.mark.parametrize(("kernel", "shape"), cases())
def test_a_shape_shows_what_it_shows_here(kernel: str, shape: Shape, request: pytest.FixtureRequest) -> None:
    stage: Stage = request.getfixturevalue("old_stage" if kernel == "ipykernel6" else "stage")
    local = stage.take()
    try:
        show_the_same(shape, stage.notebook, local)
    finally:
        local.close()
        stage.tidy()


# ---------------------------------------------------------------- shapes whose exact bytes matter

EXACT = {
    "carriage returns at the lines' ends": "x = 1\r\nif x:\r\n    print('yes')\r\nx / 0\r\n",
    "old carriage returns": "x = 1\rprint(x)\r",
    "a byte order mark": "\ufeffprint('marked')",
    "tabs": "if True:\n\tx = 1\n\tprint('a\tb')\n\tx / 0",
    "tabs and spaces": "if True:\n\tx = 1\n        y = 2",
    "a form feed": "x = 1\n\f\nprint(x)",
    "a space that does not break": "x\u00a0= 1",
    "quotation marks of a text processor": "print(\u201chello\u201d)",
    "a null byte": "x = 'a\0b'\nx",
    "white space only": "   \n\t\n  ",
    "a blank line": "\n",
    "no newline at the end, spaces instead": "print(1)   ",
    "many blank lines at the end": "print(1)\n\n\n   \n\n",
    "a magic with spaces behind it": "%pwd   \n",
    "a cell magic with spaces behind it": "%%time   \nprint(1)",
    "a cell magic with spaces before it": "  %%time\nprint(1)",
    "a shell line with a tab": "!printf 'a\tb\\n'",
    "a backslash as the last character": "print(1)\nx = 2 \\",
    "1 MB of source": '"""' + "x" * 1_000_000 + '"""\nprint("run")',
    "20,000 lines": "\n".join(f"x{n} = {n}" for n in range(20_000)) + "\nprint(x19999)\n1 / 0",
}


@pytest.mark.parametrize("code", EXACT.values(), ids=EXACT.keys())
def test_exact_bytes_show_what_they_show_here(code: str, notebook: Notebook, local: Notebook) -> None:
    options = {"first": "yes"} if code.lstrip().startswith("%%") else {}
    show_the_same(Shape(name="", cells=[code], options=options), notebook, local)


def test_carriage_returns_behind_our_own_options_too(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer --timeout 1min\r\nx = 1\r\nprint(x)\r\n")
    assert result.text() == "1\n"


def test_the_colours_of_a_traceback_are_the_same(notebook: Notebook, local: Notebook) -> None:
    code = "def f(n):\n    return 'text', 1 / n  # a comment\n\n\nf(0)"
    there, here = notebook.run(f"%%gpulayer\n{code}").error, local.run(f"# %%gpulayer \n{code}").error
    assert there is not None
    assert here is not None
    colours = [re.findall(r"\x1b\[[0-9;]*m", "\n".join(error["traceback"])) for error in (there, here)]
    assert colours[0] == colours[1]
    assert len(colours[0]) > 20


# ---------------------------------------------------------------- below other magics

OUTER = {
    "%%time": "print('a')\ndisplay('b')",
    "%%capture out": "import sys\nprint('a')\nprint('b', file=sys.stderr)\ndisplay('c')",
    "%%timeit -n1 -r1": "print('once')",
}


@pytest.mark.parametrize(("outer", "code"), OUTER.items(), ids=OUTER.keys())
def test_our_magic_below_another(outer: str, code: str, notebook: Notebook, local: Notebook) -> None:
    there, here = notebook.run(f"{outer}\n%%gpulayer\n{code}"), local.run(f"{outer}\n# %%gpulayer \n{code}")
    assert normalised(there.outputs) == normalised(here.outputs)


def test_a_result_below_capture_is_captured(notebook: Notebook) -> None:
    assert notebook.run("%%capture out\n%%gpulayer\n40 + 2").outputs == []
    assert {"text/plain": "42"} in [output.get("data") for output in notebook.run("out.show()").outputs]


# ---------------------------------------------------------------- what is meant to differ


def test_output_after_a_cells_end_comes_with_the_sessions_next_cell(notebook: Notebook) -> None:
    """A job that has ended has all of its output; a stock kernel sends it to the cell that started the thread."""
    notebook.run(
        "%%gpulayer --session late\nimport asyncio, threading\ngo, done = threading.Event(), threading.Event()\n"
        "def work():\n    go.wait()\n    print('from the thread')\n    done.set()\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "ready = asyncio.Event()\nasync def task():\n    await ready.wait()\n    print('from the task')\n"
    )
    started = notebook.run("%%gpulayer --session late\nt = asyncio.create_task(task())\nprint('started')")
    assert started.text() == "started\n"
    code = "ready.set()\nawait t\ngo.set()\ndone.wait()\nprint('end')"
    assert notebook.run(f"%%gpulayer --session late\n{code}").text() == "from the task\nfrom the thread\nend\n"


def test_a_fresh_cell_waits_for_no_thread_task_or_program(notebook: Notebook) -> None:
    code = (
        "import asyncio, atexit, subprocess, threading\n"
        "threading.Thread(target=lambda: (threading.Event().wait(), print('never'))).start()\n"
        "async def work():\n    await asyncio.sleep(86399)\n    print('never')\n"
        "task = asyncio.create_task(work())\n"
        "subprocess.Popen(['sh', '-c', 'sleep 86399; echo never'])\n"
        "atexit.register(print, 'never')\n"
        "print('done')"
    )
    result = notebook.run(f"%%gpulayer\n{code}")
    assert (result.text(), result.ok) == ("done\n", True)


def test_a_character_that_comes_in_pieces_is_one(notebook: Notebook) -> None:
    code = "import os, time\nfor byte in 'é日\\n'.encode():\n    os.write(1, bytes([byte]))\n    time.sleep(0.02)"
    assert notebook.run(f"%%gpulayer\n{code}").text() == "é日\n"


def test_what_was_printed_before_a_fork_comes_once(notebook: Notebook) -> None:
    """A stock kernel's child has its parent's buffer, and prints it again."""
    code = "import os\nprint('before')\npid = os.fork()\nif not pid:\n    print('child')\nelse:\n    os.waitpid(pid, 0)"
    assert sorted(notebook.run(f"%%gpulayer\n{code}").text().split()) == ["before", "child"]


def test_a_forked_process_that_fails_shows_why_in_order(notebook: Notebook) -> None:
    """A stock kernel's child sends each piece of text by a connection of its own: now and then they change places."""
    code = (
        "import multiprocessing\ndef work():\n    raise ValueError('in a child')\n"
        "child = multiprocessing.get_context('fork').Process(target=work, name='Child-1')\n"
        "child.start()\nchild.join()\nchild.exitcode"
    )
    result = notebook.run(f"%%gpulayer\n{code}")
    lines = result.text("stderr").splitlines()
    assert lines[:2] == ["Process Child-1:", "Traceback (most recent call last):"]
    assert [line.strip() for line in lines[-2:]] == ["raise ValueError('in a child')", "ValueError: in a child"]
    assert result.data("text/plain") == ["1"]


def test_lone_surrogates_are_shown_as_replacements(notebook: Notebook) -> None:
    """A stock kernel shows nothing of a text that holds one."""
    assert notebook.run("%%gpulayer\nprint('a\\ud800b \\udce9')").text() == "a\ufffdb \ufffd\n"


def test_an_error_that_holds_a_lone_surrogate_is_said_in_one_line(notebook: Notebook) -> None:
    """A stock kernel shows nothing of it."""
    result = notebook.run("%%gpulayer\nraise ValueError('a\\ud800b')")
    assert not result.ok
    assert len(result.traceback.splitlines()) == 1
    assert "surrogates not allowed" in result.traceback


NO_ERROR_OUTPUT = {
    "a group": "errors = [ValueError('a'), KeyError('b')]\nraise ExceptionGroup('two', errors)",
    "a group in a context": (
        "try:\n    raise ExceptionGroup('two', [ValueError('a')])\nexcept ExceptionGroup:\n    raise KeyError('b')"
    ),
}


@pytest.mark.parametrize("code", NO_ERROR_OUTPUT.values(), ids=NO_ERROR_OUTPUT.keys())
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no groups of exceptions")
def test_a_cell_that_fails_without_an_error_output_ends_in_one_line(code: str, notebook: Notebook) -> None:
    """IPython prints groups to stderr. Something is raised here all the same, so that Run All stops."""
    result = notebook.run(f"%%gpulayer\n{code}")
    assert not result.ok
    assert "Traceback (most recent call last)" in result.text("stderr")
    assert len(result.traceback.splitlines()) == 1
    assert result.traceback.startswith("gpulayer: job ")


def test_a_cell_has_no_arguments_of_jupyters(notebook: Notebook) -> None:
    """A stock kernel has its own connection file in sys.argv, which a script's parser trips over."""
    code = "import argparse, sys\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', default=0.1)\n"
    result = notebook.run(f"%%gpulayer\n{code}parser.parse_args(), sys.argv")
    assert result.data("text/plain") == ["(Namespace(lr=0.1), [''])"]


def test_the_end_of_a_sessions_kernel_is_no_end_of_the_notebooks(notebook: Notebook) -> None:
    pid = notebook.pid
    notebook.run("%%gpulayer --session ends\nx = 1")
    assert not notebook.run("%%gpulayer --session ends\nimport os\nos._exit(0)").ok
    after = notebook.run("%%gpulayer --session ends\n'x' in globals()")
    assert after.data("text/plain") == ["False"]
    assert "its state is fresh" in after.status[-1]
    assert notebook.run("1 + 1").data("text/plain") == ["2"]
    assert notebook.pid == pid


def test_exit_in_a_session_ends_it_and_does_no_harm_to_the_next_cell(notebook: Notebook) -> None:
    assert notebook.run("%%gpulayer --session leaves\nx = 1\nexit()").ok
    code = "import asyncio\nawait asyncio.sleep(0.5)\nprint('x' in globals())"
    result = notebook.run(f"%%gpulayer --session leaves\n{code}")
    assert result.text() == "False\n"
    assert "session 'leaves' had ended (a cell called exit())" in result.status[-1]


def test_inputs_are_numbered_as_in_the_notebook(notebook: Notebook) -> None:
    result = notebook.run("%%gpulayer\nprint(len(In) - 1, In[-1] == _ih[-1])")
    assert result.text() == f"{result.execution_count} True\n"
