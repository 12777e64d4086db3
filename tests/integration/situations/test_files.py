"""Situations 11 to 15: files, values and names that do not travel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.deployment import Deployment
from tests.support.notebook import Notebook
from tests.support.terminal import Cli

MISSING = "utils.py was left out by .gitignore line 3 (utils.py); --include utils.py takes it along"
LARGE_BYTES = 51_000_000


@pytest.fixture
def beside(deployment: Deployment) -> Callable[..., Notebook]:
    """Makes a notebook with files beside it."""
    return lambda **files: deployment.notebook({name.replace("__", "."): text for name, text in files.items()})


def test_11_a_module_that_gitignore_keeps_at_home(beside: Callable[..., Notebook], cli: Cli) -> None:
    notebook = beside(__gitignore="*.log\n\nutils.py\n", utils__py="LR = 0.1\n", data__log="1\n")
    failed = notebook.run("%%gpulayer\nimport utils")
    *remote, hint = failed.traceback.splitlines()
    assert remote[-1] == "ModuleNotFoundError: No module named 'utils'"
    assert hint == f"gpulayer: {MISSING}"
    mended = notebook.run("%%gpulayer --include utils.py\nimport utils\nprint(utils.LR)")
    assert mended.text() == "0.1\n"

    file = notebook.run("%%gpulayer\nopen('data.log')").traceback.splitlines()[-1]
    assert file == "gpulayer: data.log was left out by .gitignore line 1 (*.log); --include data.log takes it along"

    words = ("submit", "--source", str(notebook.folder))
    done = cli.run(*words, "--", "python", "-c", "import utils", code=1)
    assert done.stderr.splitlines()[-1] == f"gpulayer: {MISSING}"
    cli.run(*words, "--include", "utils.py", "--", "python", "-c", "import utils")


def test_12_a_data_file_over_the_limit(beside: Callable[..., Notebook]) -> None:
    notebook = beside(data__bin="x" * LARGE_BYTES)
    [line] = notebook.run("%%gpulayer\n1").traceback.splitlines()
    assert line == (
        "gpulayer: data.bin (51.0 MB): larger than 50.0 MB, the limit for one file; leave it out with --exclude "
        "data.bin, allow it with --max-file 51MB, or send what the job needs by itself: --input data.bin"
    )
    for remedy, size in (
        ("--exclude data.bin", 0),
        ("--max-file 51MB", LARGE_BYTES),
        ("--input data.bin", LARGE_BYTES),
    ):
        code = "import os\nprint(os.path.getsize('data.bin') if os.path.exists('data.bin') else 0)"
        assert notebook.run(f"%%gpulayer {remedy}\n{code}").text() == f"{size}\n"


def test_13_a_file_of_secrets_in_the_folder(beside: Callable[..., Notebook]) -> None:
    notebook = beside(__env="TOKEN=x\n")
    [line] = notebook.run("%%gpulayer\n1").traceback.splitlines()
    assert line == (
        "gpulayer: not sent, looks like a secret: .env (environment variables); leave it out with --exclude .env or in "
        ".gpulayerignore, or allow it with --include .env"
    )
    look = "import os\nprint(os.path.exists('.env'))"
    assert notebook.run(f"%%gpulayer --exclude .env\n{look}").text() == "False\n"
    assert notebook.run(f"%%gpulayer --include .env\n{look}").text() == "True\n"
    (notebook.folder / ".gpulayerignore").write_text(".env\n")
    assert notebook.run(f"%%gpulayer\n{look}").text() == "False\n"


def test_14_a_value_that_cannot_travel(notebook: Notebook) -> None:
    notebook.run("class Net:\n    pass\nmodel = {'layers': [1, Net()], 'hooks': print}")
    [line] = notebook.run("%%gpulayer --in model\n1").traceback.splitlines()
    assert line == (
        "gpulayer: --in model['layers'][1] is of type Net, which does not travel: give what it holds as numbers, str, "
        "lists, dicts or arrays, and build it anew there"
    )
    [line] = notebook.run("del model['layers']\n").traceback.splitlines() or [""]
    [line] = notebook.run("%%gpulayer --in model\n1").traceback.splitlines()
    assert line == (
        "gpulayer: --in model['hooks'] is of type builtin_function_or_method, which does not travel: define the "
        "function in the cell, or in a module that travels with it"
    )


def test_15_a_function_that_uses_an_undefined_name(notebook: Notebook) -> None:
    function = """
import gpulayer as gl

LEARNING_RATE = 0.1

def step(n):
    return n * LEARNING_RAET

@gl.remote
def train(n):
    return step(n)
"""
    words = (
        "gpulayer: step (needed by train) uses 'LEARNING_RAET', which is not defined (did you mean 'LEARNING_RATE'?): "
        "define it before the call"
    )
    with Deployment() as bare:  # no control plane is there, and the first thing that is sent would start one
        failed = bare.notebook(extension=False).run(f"{function}\ntrain(2)").traceback
        assert failed == words
        assert not bare.data.exists()
        assert len(bare.processes()) == 1, "the notebook's kernel"
    assert notebook.run(f"{function}\ntrain.map(range(3))").traceback == words
    mended = notebook.run("LEARNING_RAET = LEARNING_RATE\ntrain(2)")
    assert mended.data("text/plain") == ["0.2"], mended.traceback
