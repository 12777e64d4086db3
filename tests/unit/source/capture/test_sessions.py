"""What a notebook's functions are captured as: pieces, data, digests; also in a real shell."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpulayer.source.capture import Captured, CaptureError, Piece, capture
from tests.support.sessions import Case, Elsewhere, RaisedThere, Session, cases


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere() as child:
        yield child


def where(captured: Captured) -> list[tuple[str, int]]:
    """The slots of the pieces and their lines."""
    return [(piece.slot, piece.first_line) for piece in captured.pieces]


def test_what_a_capture_says() -> None:
    session = Session().cell("import math\nscale = 3")
    session.cell(
        "# a comment\n\ndef helper(x):\n    return math.sqrt(x) * scale\n\n\ndef f(x):\n    return helper(x)\n"
    )
    captured = session.capture("f")
    assert captured == Captured(
        name="f",
        module="",
        qualname="f",
        root=None,
        sys_path=(),
        source=(
            "# <imports of f>, line 1\nimport math\n\n"
            "# cell of f, line 7\ndef f(x):\n    return helper(x)\n\n"
            "# cell of helper, line 3\ndef helper(x):\n    return math.sqrt(x) * scale"
        ),
        pieces=(
            Piece(filename="<imports of f>", first_line=1, text="import math", names=("math",)),
            Piece(
                filename="cell of f",
                first_line=7,
                text="def f(x):\n    return helper(x)",
                slot="f",
                defines="f",
            ),
            Piece(
                filename="cell of helper",
                first_line=3,
                text="def helper(x):\n    return math.sqrt(x) * scale",
                slot="helper",
                defines="helper",
                names=("helper",),
            ),
        ),
        data={"scale": 3},
        kind="function",
        is_async=False,
        cells={"cell of f": session.filename, "cell of helper": session.filename},
        digest=captured.digest,
    )
    assert len(captured.digest) == 64


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases()])
def test_equal_sessions_give_equal_captures_that_are_plain(case: Case) -> None:
    captured = case.session().capture("f")
    assert case.session().capture("f").digest == captured.digest
    spec = captured.spec()
    assert json.loads(json.dumps(spec)) == spec
    assert set(spec) == {field.name for field in dataclasses.fields(Captured)} - {*("root", "source", "data", "cells")}


def test_the_digest_tells_apart_all_but_the_values_of_data() -> None:
    session = Session().cell("scale = 3\ndef f(x):\n    return x * scale")
    first = session.capture("f")
    session.cell("scale = 4")
    second = session.capture("f")
    assert (first.digest, first.data, second.data) == (second.digest, {"scale": 3}, {"scale": 4})
    session.cell("def scale(): pass")
    assert session.capture("f").digest != first.digest


def test_a_cell_that_is_run_again_as_it_was_makes_the_same(elsewhere: Elsewhere) -> None:
    cells = "class A:\n    n = 1", "def helper(x):\n    return A.n / x", "# f\ndef f(x):\n    return helper(x)\n"
    session = Session()
    for cell in cells:
        session.cell(cell)
    first = session.capture("f")
    session.cell("1 + 1").cell(cells[0]).cell(cells[1]).cell(cells[2] + "print(1)")
    again = session.capture("f")
    assert (again.digest, again.spec()) == (first.digest, first.spec())
    assert (
        first.cells != again.cells == {name: again.cells[name] for name in ("cell of A", "cell of helper", "cell of f")}
    )
    assert again.cells["cell of f"] == session.filename
    session.cell("\n# lower\n\n" + cells[1])
    assert session.capture("f").digest != again.digest
    with pytest.raises(RaisedThere) as raised:
        elsewhere.call(again, 0)
    assert '  File "cell of helper", line 2, in helper' in raised.value.traceback


def test_kinds() -> None:
    session = Session().cell("def f(): pass\ndef g(): yield\nasync def a(): pass\nclass C: pass")
    session.cell("from contextlib import contextmanager\n@contextmanager\ndef m():\n    yield")
    kinds = [(session.capture(name).kind, session.capture(name).is_async) for name in "fgaCm"]
    assert kinds == [
        ("function", False),
        ("generator", False),
        ("function", True),
        ("class", False),
        ("function", False),
    ]


def test_what_is_defined_again_takes_effect_at_the_next_call(elsewhere: Elsewhere) -> None:
    session = Session().cell("scale = 2").cell("def helper(x):\n    return x * scale").cell("class A:\n    n = 1")
    session.cell("def f(x):\n    return helper(x) + A.n")
    seen = [elsewhere.call(session.capture("f"), 10)]
    for cell in (
        "scale = 3",
        "def helper(x):\n    return x * scale * 100",
        "class A:\n    n = 7",
        "A.n = 8",
        "helper = lambda x: x",
        "from operator import neg as helper",
        "def f(x):\n    return 'new'",
    ):
        seen.append(elsewhere.call(session.cell(cell).capture("f"), 10))
    assert seen == [21, 31, 3001, 3007, 3008, 18, -2, "new"]


def test_our_own_decorators_stay_here_and_others_travel(elsewhere: Elsewhere) -> None:
    session = Session().cell(
        """
        import functools, types
        class Remote:
            def __init__(self, function):
                self.__gpulayer_function__ = function
        def remote(function=None, **options):
            return decorate if function is None else Remote(function)
        def decorate(function):
            return Remote(function)
        remote.__gpulayer_decorator__ = decorate.__gpulayer_decorator__ = True
        gl = types.SimpleNamespace(remote=remote)
        gpu = gl.remote(accelerator="cuda")
        def double(function):
            @functools.wraps(function)
            def wrapper(*args):
                return 2 * function(*args)
            return wrapper
        """
    )
    session.cell("@gl.remote\ndef plain(x):\n    return x + 1")
    session.cell(
        "@gl.remote(\n    devices=[1,\n    2],\n)\n@double  # twice\ndef f(x):\n    return plain(x) + f.__wrapped__(x)"
    )
    session.cell("@gpu\n@double\ndef g(x):\n    return x if x < 2 else g(x - 1)")
    session.cell("@remote\nclass Model:\n    @gl.remote\n    def go(self, x):\n        return plain(x), Model.__name__")
    captured = session.capture("f")
    assert captured.pieces[-2].text == "\n\n\n\n@double  # twice\ndef f(x):\n    return plain(x) + f.__wrapped__(x)"
    assert "gl" not in captured.source.split()
    with pytest.raises(RaisedThere, match="RecursionError"):
        elsewhere.call(captured, 1)
    assert elsewhere.call(session.capture("g"), 3) == 8
    assert elsewhere.evaluate(session.capture("Model"), "made().go(3)") == (4, "Model")
    assert elsewhere.call(capture(session["plain"]), 1) == 2


def test_what_is_evaluated_comes_before_what_evaluates_it() -> None:
    session = Session().cell(
        """
        def late():
            return LIMIT
        LIMIT = 3
        def decorate(function):
            late()
            return function
        class Base:
            pass
        class Child(Base):
            pass
        def size():
            return late()
        @decorate
        def f(child=Child, *, n: Base = None):
            class Inner(Child):
                pass
            return Inner
        """
    )
    order = [piece.slot for piece in session.capture("f").pieces]
    assert set(order) == {"f", "decorate", "late", "Base", "Child"}
    assert order.index("late") < order.index("f") > order.index("decorate")
    assert order.index("Base") < order.index("Child") < order.index("f")


def test_annotations_that_cant_travel_are_not_evaluated() -> None:
    session = Session().cell(
        "import threading\nLock = threading.Lock()\ndef f(x: Lock, y: int = 1): pass\ndef g(x: int): pass"
    )
    assert session.capture("f").pieces[-1].future == ("annotations",)
    assert session.capture("f").data == {}
    assert session.capture("g").pieces[-1].future == ()


def test_the_order_of_cells_that_were_run_again(elsewhere: Elsewhere) -> None:
    session = Session().cell("class A:\n    n = 1\n    def get(self):\n        return self.n")
    session.cell("class Plain:\n    n = 1").cell("def f():\n    return A().get(), Plain.n")
    session.cell("class Plain:\n    n = 2\n    more = 3").cell(
        "class A:\n    n = 5\n    def get(self):\n        return -self.n"
    )
    assert elsewhere.call(session.capture("f")) == (-5, 2)


def test_a_class_keeps_the_base_that_it_was_made_with(elsewhere: Elsewhere) -> None:
    session = Session().cell("class Base:\n    def get(self):\n        return 'old'\nclass Child(Base):\n    pass")
    session.cell("class Base:\n    def get(self):\n        return 'new'")
    session.cell("def f():\n    return Child().get(), Base().get(), isinstance(Child(), Base)")
    assert elsewhere.call(session.capture("f")) == session["f"]() == ("old", "new", False)


def test_a_long_chain_of_helpers(elsewhere: Elsewhere) -> None:
    session = Session()
    lines = [f"def f{n}(x):\n    return f{n + 1}(x) + 1" for n in range(60)]
    session.cell("\n".join([*lines, "def f60(x):\n    return x"]))
    assert elsewhere.call(session.capture("f0"), 5) == 65


class TestShell:
    """A real IPython shell, in an interpreter of its own."""

    def run(self, *cells: str, kernel: bool = False) -> list[Any]:
        """What `show` was given in the cells."""
        program = f"""
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from gpulayer.source.capture import CaptureError, capture
class Shell(InteractiveShell):
    if {kernel}:
        from ipykernel.compiler import XCachingCompiler as compiler_class
shell = Shell.instance(history_load_length=0)
shell.history_manager.enabled = False
shown = []
def look(name="f"):
    try:
        captured = capture(shell.user_ns[name])
        named = [captured.cells.get(piece.filename, piece.filename) for piece in captured.pieces]
        pieces = [[name, piece.first_line, piece.text] for name, piece in zip(named, captured.pieces)]
        return pieces, sorted(captured.data)
    except CaptureError as error:
        return str(error)
shell.user_ns["show"] = lambda name="f": shown.append(look(name))
for cell in json.load(sys.stdin):
    shell.run_cell(cell, store_history=True).raise_error()
print(json.dumps(shown))
"""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            input=json.dumps(cells),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def test_cells(self) -> None:
        shown = self.run(
            "import math\nk = 3\nclass A:\n    n = 1",
            "await __import__('asyncio').sleep(0)\n%alias_magic t timeit\ndef f(x):\n    return math.sqrt(x) + k + A.n",
            "show()",
            "class A:\n    n = 2",
            "show()",
            "def f():\n    !ls\nshow()",
            "def f(x):\n    display(x)\nshow()",
            "%%time\ndef timed(): pass",
            "show('timed')",
        )
        (imports, f, a), data = shown[0]
        assert (imports[2], data) == ("import math", ["k"])
        assert (f[0].split("-")[:3], f[1:]) == (
            ["<ipython", "input", "2"],
            [3, "def f(x):\n    return math.sqrt(x) + k + A.n"],
        )
        assert (a[0].split("-")[:3], a[1:]) == (["<ipython", "input", "1"], [3, "class A:\n    n = 1"])
        assert (shown[1][0][2][0].split("-")[2], shown[1][0][2][2]) == ("4", "class A:\n    n = 2")
        assert shown[2].startswith("f uses 'get_ipython' (a magic or a ! command is one too)")
        assert shown[3][0][0][2].endswith(" import display")
        assert shown[4] == "the source of timed can't be found: define it in a cell without %%time"

    def test_what_the_shell_has_put_in_place_of_a_builtin_is_the_builtin(self) -> None:
        shown = self.run(
            "def f(path):\n    return open(path)",
            "show()",
            "def open(path):\n    return 'mine'",
            "show()",
        )
        assert [piece[2] for piece in shown[0][0]] == ["def f(path):\n    return open(path)"]
        assert any("return 'mine'" in piece[2] for piece in shown[1][0])

    def test_cells_of_a_kernel_are_called_by_their_numbers(self) -> None:
        shown = self.run(
            "class A:\n    n = 1",
            "# f\ndef f():\n    return A.n",
            "show()",
            "class A:\n    n = 1",
            "show()",
            kernel=True,
        )
        assert shown[0][0] == [["cell 2", 2, "def f():\n    return A.n"], ["cell 1", 1, "class A:\n    n = 1"]]
        assert shown[1][0][1] == ["cell 4", 1, "class A:\n    n = 1"]


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys; import gpulayer.source.capture; "
        "print(sorted({'IPython', 'numpy', 'msgpack', 'pandas', 'torch', 'msgspec', 'httpx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_errors_are_errors_of_the_source() -> None:
    with pytest.raises(ValueError, match="an int is no function"):
        capture(3)  # type: ignore[arg-type]
    assert issubclass(CaptureError, ValueError)
