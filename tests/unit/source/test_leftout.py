"""What a program misses, and why it did not travel."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulayer.source import scan
from gpulayer.source.leftout import glob_of, why_missing

FILES = {
    ".gitignore": "*.log\n\nutils.py\nbuild/\n*.csv\n*.so\n",
    ".gpulayerignore": "lib/**\n",
    "train.py": "",
    "utils.py": "",
    "build/made.py": "",
    "data/x 1.csv": "",
    "pkg/__init__.py": "",
    "pkg/utils.py": "",
    "checkpoints/last.pt": "",
    "fast.cpython-311-x86_64-linux-gnu.so": "",
    "lib/deep/tools.py": "",
    "mine.py": "",
}
UTILS = "utils.py was left out by .gitignore line 3 (utils.py); --include utils.py takes it along"
CSV = "data/x 1.csv was left out by .gitignore line 5 (*.csv); --include 'data/x 1.csv' takes it along"
TOOLS = "lib/deep/tools.py was left out by .gpulayerignore line 1 (lib/**); --include lib/deep/tools.py takes it along"
FAST = "fast.cpython-311-x86_64-linux-gnu.so was left out by .gitignore line 6 (*.so); "


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("ModuleNotFoundError: No module named 'utils'", UTILS),
        ("/usr/bin/python: No module named utils", UTILS),
        ("ModuleNotFoundError: No module named 'pkg.utils'", "pkg/utils.py was left out by .gitignore line 3"),
        ("ImportError: cannot import name 'utils' from 'pkg' (/x/pkg/__init__.py)", "pkg/utils.py was left out by "),
        ("ModuleNotFoundError: No module named 'build.made'", "build/made.py was left out by .gitignore line 4"),
        ("ModuleNotFoundError: No module named 'build'", "build was left out by .gitignore line 4 (build/); "),
        ("ModuleNotFoundError: No module named 'fast'", FAST),
        ("ModuleNotFoundError: No module named 'mine'", "mine.py was left out by --exclude rule (mine.py); "),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/x 1.csv'", CSV),
        ("FileNotFoundError: [Errno 2] No such file or directory: './data/../data/x 1.csv'", CSV),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'checkpoints/last.pt'",
         "checkpoints/last.pt was left out by default rule (checkpoints/); --include checkpoints/last.pt takes it"),
        ("python: can't open file '/d/attempts/a/workspace/utils.py': [Errno 2] No such file or directory", UTILS),
        ("bash: line 1: ./lib/deep/tools.py: No such file or directory", TOOLS),
        ("No such file or directory: 'train.py'\nModuleNotFoundError: No module named 'utils'\n", UTILS),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_the_rule_and_the_remedy(home: Path, error: str, said: str) -> None:
    hint = why_missing(scan(home, exclude=["mine.py"]), error)
    assert hint.startswith(said)
    assert "\n" not in hint


def test_a_module_somewhere_below_is_found_by_its_name(home: Path) -> None:
    assert why_missing(scan(home), "ModuleNotFoundError: No module named 'tools'") == ""  # its folder was not entered
    (home / ".gpulayerignore").write_text("lib/deep/*\n")
    hint = why_missing(scan(home), "ModuleNotFoundError: No module named 'tools'")
    assert hint == TOOLS.replace("lib/**", "lib/deep/*")


@pytest.mark.parametrize(
    "error",
    [
        "ModuleNotFoundError: No module named 'torch'",
        "ModuleNotFoundError: No module named 'train'",  # it travelled
        "FileNotFoundError: [Errno 2] No such file or directory: 'absent.csv'",  # ignored, but not there either
        "FileNotFoundError: [Errno 2] No such file or directory: '/etc/x.csv'",
        "FileNotFoundError: [Errno 2] No such file or directory: '../x.csv'",
        "ValueError: utils",
        "",
    ],
)
def test_other_errors_get_no_hint(home: Path, error: str) -> None:
    assert why_missing(scan(home), error) == ""


def test_the_hint_mends_it(home: Path) -> None:
    for path in ("utils.py", "build/made.py", "data/x 1.csv", "checkpoints/last.pt"):
        bundle = scan(home, include=[glob_of(path).strip("'")])
        assert path in bundle.manifest.by_path


@pytest.mark.parametrize(("path", "glob"), [("a[1].py", "'a\\[1].py'"), ("!x", "'\\!x'"), ("a/b.py", "a/b.py")])
def test_a_glob_names_its_path_only(path: str, glob: str) -> None:
    assert glob_of(path) == glob
