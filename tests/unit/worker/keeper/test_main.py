"""The command line, and how little a keeper loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gpulayer_worker
from gpulayer_worker.keeper.__main__ import main, parse


def test_the_command_line_is_read() -> None:
    words = "--data relative --portable --containment marker --detach -- agent --data"
    options = parse([*words.split()])
    assert options is not None
    assert options.data == str(Path("relative").absolute())
    assert (options.portable, options.detach, options.containment) == (True, True, "marker")
    assert options.agent_argv == ["agent", "--data"]
    plain = parse(["--data", "/d", "--", "agent"])
    assert plain is not None
    assert (plain.portable, plain.detach, plain.containment) == (False, False, None)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--data", "/d"],
        ["--data", "/d", "--"],
        ["--", "agent"],
        ["--data"],
        ["--data", "/d", "--containment"],
        ["--data", "/d", "--what", "--", "agent"],
    ],
)
def test_a_wrong_command_line_shows_how_it_is_used(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("usage: ")


def test_a_keeper_loads_nothing_large() -> None:
    folder = Path(gpulayer_worker.__file__).parent.parent
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import gpulayer_worker.keeper.loop; "
        "import gpulayer_worker.keeper.__main__; print('\\n'.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    heavy = {"argparse", "asyncio", "dataclasses", "hashlib", "inspect", "logging", "pathlib", "psutil", "random"}
    heavy |= {"subprocess", "tempfile", "threading", "traceback", "typing"}
    assert heavy.isdisjoint(done.stdout.split())
