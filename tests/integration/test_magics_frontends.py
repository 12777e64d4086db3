"""Front ends other than JupyterLab: VS Code, nbclient, nbconvert, a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import FILES
from tests.support.deployment import Deployment
from tests.support.notebook import Notebook

CLEARED = """\
%%gpulayer
from IPython.display import clear_output
for n in range(3):
    print('frame', n)
    clear_output(wait=True)
print('done')
"""


RUN = """import nbclient, nbformat
book = nbformat.read("demo.ipynb", as_version=4)
nbclient.NotebookClient(book, allow_errors=True, timeout=120, coalesce_streams=True).execute()
nbformat.write(book, "demo.ipynb")
"""


# ---------------------------------------------------------------- VS Code


@pytest.fixture
def code(deployment: Deployment) -> Notebook:
    """A kernel as VS Code starts one, in the home folder's stead: it tells the notebook's path in a variable."""
    notebook = deployment.notebook({"elsewhere.txt": ""})
    project = deployment.folder / f"{notebook.folder.name}-project"
    project.mkdir()
    for name, text in FILES.items():
        (project / name).write_text(text)
    (project / "demo.ipynb").write_text("{}")
    notebook.run(f"__vsc_ipynb_file__ = {str(project / 'demo.ipynb')!r}")
    return notebook


def test_in_vs_code_the_notebooks_own_folder_travels(deployment: Deployment, code: Notebook) -> None:
    result = code.run("%%gpulayer\nimport os\nprint(sorted(os.listdir()))\nimport train")
    assert result.text() == "['train.py']\n"
    job = deployment.api.jobs(limit=1)[0]
    assert job.name == "cell, demo.ipynb"
    assert job.notebook.endswith("-project/demo.ipynb")
    assert job.cell_id == ""
    code.close()


def test_without_a_word_of_the_front_end_the_kernels_folder_travels(deployment: Deployment, notebook: Notebook) -> None:
    assert notebook.run("%%gpulayer\nimport os\nos.path.exists('train.py')").data("text/plain") == ["True"]
    job = deployment.api.jobs(limit=1)[0]
    assert (job.name, job.notebook, job.cell_id) == ("cell", "", "")


def test_what_a_front_end_can_not_show_has_a_plain_text(notebook: Notebook) -> None:
    """A front end that takes no comms and knows no MIME type of a widget shows what is always there."""
    pytest.importorskip("ipywidgets")
    code = "from ipywidgets import IntSlider\nfrom IPython.display import HTML, JSON, Latex\n"
    result = notebook.run(f"%%gpulayer\n{code}display(HTML('<b>b</b>'), JSON([1]), Latex('$x$'))\nIntSlider(7)")
    shown = [output for output in result.outputs if "data" in output]
    assert len(shown) == 4
    assert all(output["data"]["text/plain"] for output in shown)
    assert "IntSlider(value=7)" in shown[-1]["data"]["text/plain"]
    assert all("\n" not in line and line for line in result.status)


# ---------------------------------------------------------------- a saved notebook


CELLS = {
    "load": "%load_ext gpulayer",
    "said": "%%gpulayer\nprint('said')\n40 + 2",
    "cleared": CLEARED,
    "quiet": "%%gpulayer --quiet\nprint('alone')",
    "bars": "%%gpulayer\nfrom tqdm.notebook import tqdm\nfor n in tqdm(range(3), mininterval=0):\n    pass",
    "fails": "%%gpulayer --worker alpha\nprint('before')\n1 / 0",
}


@pytest.fixture(scope="module")
def book(shared: Deployment) -> Any:
    """A notebook that nbclient has run, as it was saved."""
    for needed in ("nbclient", "ipywidgets"):
        pytest.importorskip(needed)
    nbformat = pytest.importorskip("nbformat")
    folder = shared.folder / "nbclient"
    folder.mkdir()
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS.values()]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "demo.ipynb")
    env = shared.env | {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder / "runtime")}
    subprocess.run([sys.executable, "-c", RUN], cwd=folder, env=env, check=True, timeout=300)
    book = nbformat.read(folder / "demo.ipynb", as_version=4)
    nbformat.validate(book)
    return book


def outputs(book: Any, name: str) -> list[Any]:
    """What a cell of `CELLS` shows."""
    return book.cells[list(CELLS).index(name)]["outputs"]


def texts(book: Any, name: str) -> list[str]:
    """The same in plain text."""
    shown = outputs(book, name)
    return [output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"] for output in shown]


def test_a_saved_notebook_has_one_short_line_above_each_cells_own_output(book: Any) -> None:
    for name, own in (("said", ["said\n", "42"]), ("cleared", ["done\n"])):
        line, *rest = texts(book, name)
        assert line.startswith("✓ done on alpha in ")
        assert len(line) < 100
        assert "\n" not in line
        assert rest == own
    assert texts(book, "quiet") == ["alone\n"]


def test_a_remote_error_is_the_notebooks(book: Any) -> None:
    line, before, error = outputs(book, "fails")
    assert line["data"]["text/plain"].startswith("✗ failed on alpha after ")
    assert before["text"] == "before\n"
    assert (error["output_type"], error["ename"]) == ("error", "ZeroDivisionError")
    assert "line 3" in "\n".join(error["traceback"])


def test_a_saved_notebook_has_the_widgets_last_state(book: Any) -> None:
    found = book.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"].values()
    [bar] = [each["state"] for each in found if each["model_name"] == "FloatProgressModel"]
    assert (bar["value"], bar["max"], bar["bar_style"]) == (3.0, 3.0, "success")
    line, view = outputs(book, "bars")
    assert line["data"]["text/plain"].startswith("✓ done")
    assert "application/vnd.jupyter.widget-view+json" in view["data"]


def test_nbconvert_of_a_run_notebook_reads_well(book: Any) -> None:
    exporter = pytest.importorskip("nbconvert").MarkdownExporter()
    text, _ = exporter.from_notebook_node(book)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    at = lines.index("%%gpulayer --worker alpha")
    assert lines[at + 1 : at + 3] == ["print('before')", "1 / 0"]
    below = lines[at + 3 :]
    assert next(line for line in below if line.startswith("✗")).startswith("✗ failed on alpha after ")
    assert "before" in below
    assert below[-1].endswith("ZeroDivisionError: division by zero")
    assert "gpulayer/notebook" not in text  # nothing of our own code


# ---------------------------------------------------------------- a terminal


def run_in_terminal(deployment: Deployment, script: str) -> subprocess.CompletedProcess[str]:
    """IPython without a kernel."""
    folder = Path(deployment.folder, "term")
    folder.mkdir(exist_ok=True)
    (folder / "t.ipy").write_text(script)
    env = deployment.env | {"IPYTHONDIR": str(folder / "ipython"), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "IPython", "--HistoryManager.enabled=False", "--colors=NoColor", "t.ipy"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_in_a_terminal_stdout_is_the_programs_alone(deployment: Deployment) -> None:
    cell = "print('said')\ndisplay('shown')\n40 + 2"
    script = f"%load_ext gpulayer\nget_ipython().run_cell_magic('gpulayer', '', {cell!r})\n"
    ended = run_in_terminal(deployment, script)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split()[:2] == ["said", "'shown'"]
    assert ended.stdout.endswith("]: 42\n")
    assert [line[0] for line in ended.stderr.splitlines()][-1] == "✓"


def test_in_a_terminal_quiet_leaves_stderr_empty(deployment: Deployment) -> None:
    script = (
        "%load_ext gpulayer\nget_ipython().run_cell_magic('gpulayer', '--quiet', 'print(1)')\n%gpulayer jobs -n 1\n"
    )
    ended = run_in_terminal(deployment, script)
    assert ended.stderr == ""
    assert ended.stdout.startswith("1\n")
    assert re.search("[✓●]  ", ended.stdout)  # the cell ends a commit before its job does
