"""Notebooks without a kernel, and an interpreter that has nothing of ours: functions go from the one to the other."""

from __future__ import annotations

import ast
import base64
import json
import linecache
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gpulayer.protocol.values import decode, encode
from gpulayer.source.capture import Captured, capture

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A function or class of a notebook, called `f` there, that has to behave the same after its journey."""

    name: str
    cells: tuple[str, ...]
    expression: str = "made(*args)"  # what is looked at; `made` is what travelled
    args: tuple[Any, ...] = ()

    def session(self) -> Session:
        """The notebook with all cells executed."""
        session = Session()
        for cell in self.cells:
            session.cell(cell)
        return session

    def here(self, session: Session) -> Any:
        """What `f` gives where it was defined."""
        return eval(self.expression, {"made": session["f"], "args": self.args})


def cases() -> list[Case]:
    """All cases: in `sessioncases`, `####` begins one, and `# %%` each of its cells."""
    found: list[Case] = []
    for path in sorted((Path(__file__).parent / "sessioncases").glob("*.ipy")):
        for part in re.split(r"^#### (?!args:|expression:)", path.read_text(), flags=re.MULTILINE)[1:]:
            head, *cells = re.split(r"^# %%\n", part, flags=re.MULTILINE)
            options = dict(re.findall(r"^#### (args|expression): (.*)$", head, flags=re.MULTILINE))
            args = ast.literal_eval(options.pop("args", "()"))
            found.append(Case(name=head.partition("\n")[0], cells=tuple(cells), args=args, **options))
    return found


class Session:
    """A notebook: cells that are executed one after the other in one namespace."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.count = 0
        self.filename = ""  # of the last cell

    def cell(self, text: str) -> Session:
        """Execute a cell, as IPython does it: with a file name of its own, its text in linecache."""
        self.count += 1
        text = textwrap.dedent(text).lstrip("\n")
        filename = f"<ipython-input-{self.count}-{abs(hash(text)) % 1000000:06x}>"
        self.filename = filename
        linecache.cache.pop(filename, None)  # the newest is the last
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a cell is written like
            code = compile(text, filename, "exec", dont_inherit=True)
        exec(code, self.names)
        return self

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def capture(self, name: str, **options: Any) -> Captured:
        """What a name of the notebook is captured as."""
        return capture(self.names[name], **options)


_CHILD = """
import base64, importlib.util, json, sys, traceback

def package(name, path, folder=None):
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folder and [folder])
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

loading = package("_loading", sys.argv[1])
values = package("_values", sys.argv[2] + "/__init__.py", sys.argv[2])
unpack = lambda parts: values.decode([bytearray(base64.b64decode(part)) for part in parts])
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    try:
        made = loading.load(asked["spec"], unpack(asked["data"]), asked["folder"])
        value = eval(asked["expression"], {"made": made, "args": unpack(asked["args"])})
        answer = {"value": [base64.b64encode(bytes(part)).decode() for part in values.encode(value)]}
    except BaseException as error:
        answer = {"error": type(error).__name__, "text": str(error), "traceback": traceback.format_exc()}
    print(json.dumps(answer), flush=True)
"""


class RaisedThere(Exception):
    """An exception in the other interpreter."""

    def __init__(self, kind: str, text: str, shown: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.traceback = shown


class Elsewhere:
    """An interpreter that knows neither this folder nor what is installed: it loads what was captured, and calls it."""

    def __init__(self, flags: tuple[str, ...] = ("-I", "-S")) -> None:
        loading = _ROOT / "worker" / "gpulayer_worker" / "runner" / "loading.py"
        values = _ROOT / "gpulayer" / "protocol" / "values"
        self._child = subprocess.Popen(
            [sys.executable, *flags, "-c", _CHILD, str(loading), str(values)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == "ready\n"

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._child.communicate("")

    def call(self, captured: Captured, *args: Any) -> Any:
        """What it returns there. Raises `RaisedThere`."""
        return self.evaluate(captured, "made(*args)", *args)

    def evaluate(self, captured: Captured, expression: str, *args: Any, folder: str | None = None) -> Any:
        """The value of an expression of `made`, what travelled, and `args`; `folder` is the bundle's, else root."""
        asked = {
            "spec": captured.spec(),
            "data": _packed(captured.data),
            "folder": folder or captured.root,
            "expression": expression,
            "args": _packed(args),
        }
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(asked) + "\n")
        self._child.stdin.flush()
        answer = json.loads(self._child.stdout.readline())
        if "error" in answer:
            raise RaisedThere(answer["error"], answer["text"], answer["traceback"])
        return decode([bytearray(base64.b64decode(part)) for part in answer["value"]])


def _packed(value: Any) -> list[str]:
    return [base64.b64encode(bytes(part)).decode() for part in encode(value)]


def write_files(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    """Files of a project."""
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))
