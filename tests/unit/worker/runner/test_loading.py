"""Functions of sessions and modules, captured here and made again in an interpreter that has nothing of ours."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.source.capture import capture
from gpulayer_worker.runner import loading
from tests.support.sessions import Case, Elsewhere, RaisedThere, Session, cases, write_files


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere() as child:
        yield child


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases()])
def test_it_behaves_there_as_it_does_here(case: Case, elsewhere: Elsewhere) -> None:
    session = case.session()
    captured = session.capture("f")
    there = elsewhere.evaluate(captured, case.expression, *case.args)
    assert there == case.here(session)


def raised(elsewhere: Elsewhere, session: Session, name: str = "f", *args: object) -> RaisedThere:
    with pytest.raises(RaisedThere) as there:
        elsewhere.call(session.capture(name), *args)
    return there.value


def test_tracebacks_point_into_the_cells(elsewhere: Elsewhere) -> None:
    session = Session().cell(
        """
        # one

        def helper(x):
            # two
            return 1 / x


        class A:
            def go(self, x):
                return helper(x)
        """
    )
    session.cell(
        """
        def unused():
            pass


        def f(x,
              y=helper):
            return [A().go(x)
                    for _ in [1]]
        """
    )
    error = raised(elsewhere, session, "f", 0)
    assert (error.kind, error.text) == ("ZeroDivisionError", "division by zero")
    frames = [line.strip() for line in error.traceback.splitlines() if line.startswith("  File")][-4:]
    if len(frames) == 4 and "<listcomp>" in frames[1]:
        del frames[1]  # before Python 3.12
    assert [frame.replace("A.go", "go") for frame in frames[-3:]] == [
        'File "cell of f", line 7, in f',
        'File "cell of A", line 10, in go',
        'File "cell of helper", line 5, in helper',
    ]
    assert "return 1 / x" in error.traceback
    assert "return [A().go(x)" in error.traceback


def test_tracebacks_of_what_is_cut_out_and_wrapped(elsewhere: Elsewhere) -> None:
    session = Session().cell(
        """
        import functools
        def wrapping(function):
            @functools.wraps(function)
            def wrapper(*args):
                return function(*args)
            return wrapper
        def make(k):
            if k:
                @wrapping
                def inner(x):
                    return k / x
            return inner
        f = make(1)
        g = lambda x: \\
            1 / x
        if True:
            def h(x):
                return 1 / x
        """
    )
    for name, lines in (("f", (5, 11)), ("g", (15,)), ("h", (18,))):
        error = raised(elsewhere, session, name, 0)
        seen = [line for line in error.traceback.splitlines() if line.startswith('  File "cell of ')]
        assert [int(line.split("line ")[1].split(",")[0]) for line in seen] == list(lines)
    assert "return k / x" in raised(elsewhere, session, "f", 0).traceback


def test_tracebacks_of_definitions(elsewhere: Elsewhere) -> None:
    session = Session().cell(
        "home = True\ndef here(function):\n    if not home:\n        raise KeyError('away')\n    return function"
    )
    session.cell("@here\n@here\ndef f(): pass").cell("home = False")
    error = raised(elsewhere, session)
    assert (error.kind, error.text) == ("KeyError", "'away'")
    assert "raise KeyError('away')" in error.traceback


def test_a_module_that_is_not_installed_there(elsewhere: Elsewhere) -> None:
    session = Session().cell("import pytest as pt\nimport math\ndef f():\n    return pt.raises, math.pi")
    error = raised(elsewhere, session)
    assert (error.kind, error.text) == ("ModuleNotFoundError", "No module named 'pytest'")
    assert 'File "<imports of f>", line 2, in <module>\n    import pytest as pt' in error.traceback


def test_where_functions_and_classes_say_they_live(elsewhere: Elsewhere) -> None:
    session = Session().cell(
        """
        class A:
            class B: pass
        def make():
            k = 1
            def inner():
                return k
            return inner
        f = make()
        def g():
            import sys
            return sys.modules[__name__].g is g, A.B.__qualname__, A.__module__ == __name__, repr(A)[:25]
        """
    )
    assert elsewhere.call(session.capture("g")) == (True, "A.B", True, "<class '__gpulayer_main__")
    assert elsewhere.evaluate(session.capture("f"), "made.__qualname__") == "inner"


def test_the_block_of_a_script_does_not_run(elsewhere: Elsewhere) -> None:
    session = Session().cell("def f():\n    if __name__ == '__main__':\n        return 'main'\n    return 'imported'")
    assert elsewhere.call(session.capture("f")) == "imported"
    assert session["f"]() == "main"


def test_two_that_were_loaded_do_not_meet(elsewhere: Elsewhere) -> None:
    first = Session().cell("state = [1]\ndef f():\n    state.append(len(state))\n    return state")
    second = Session().cell("state = ['a']\ndef f():\n    state.append(len(state))\n    return  state")
    assert elsewhere.call(first.capture("f")) == [1, 1]
    assert elsewhere.call(second.capture("f")) == ["a", 1]
    assert elsewhere.evaluate(first.capture("f"), "made() and made()") == [1, 1, 2]


def test_gpulayer_is_not_needed_where_a_function_runs(elsewhere: Elsewhere) -> None:
    session = Session().cell(
        """
        import gpulayer as gl
        def f(x):
            @gl.remote(devices=1)
            def inner(x):
                return x + 1
            return inner(x)
        """
    )
    session.cell("def g():\n    return gl.Client()")
    assert elsewhere.call(session.capture("f"), 1) == 2
    error = raised(elsewhere, session, "g")
    assert (error.kind, error.text) == (
        "AttributeError",
        "gpulayer.Client needs gpulayer, which is not installed in this environment: add it there",
    )


def test_what_is_installed_there_in_another_version(elsewhere: Elsewhere) -> None:
    captured = dataclasses.replace(capture(json.dumps), qualname="dumped")
    with pytest.raises(RaisedThere) as there:
        elsewhere.call(captured)
    assert there.value.kind == "LoadError"
    assert re.fullmatch(
        r"module json \(.*/json/__init__\.py\) has no dumped here: another version of it is installed", there.value.text
    )


def test_files_that_have_not_come_along(elsewhere: Elsewhere) -> None:
    captured = dataclasses.replace(capture(json.dumps), name="mine", sys_path=("src",))
    with pytest.raises(RaisedThere) as there:
        elsewhere.call(captured)
    assert (there.value.kind, there.value.text) == (
        "LoadError",
        "mine needs the files of its project, and none have come along: send them with the call",
    )


def test_the_folders_of_the_bundle_come_first(elsewhere: Elsewhere, tmp_path: Path) -> None:
    write_files(tmp_path, [("src/json.py", ""), ("a/here_first.py", "N = 1\n"), ("b/here_first.py", "N = 2\n")])
    session = Session().cell("def f():\n    import sys, here_first\n    return sys.path[:2], here_first.N")
    captured = dataclasses.replace(session.capture("f"), sys_path=("b", "a"))
    path, number = elsewhere.evaluate(captured, "made()", folder=str(tmp_path))
    assert (path, number) == ([str(tmp_path / "b"), str(tmp_path / "a")], 2)


def test_arrays_travel_with_the_function() -> None:
    session = Session().cell(
        """
        import numpy as np
        import numpy.linalg as la
        from numpy import sqrt, float32
        weights = np.eye(3)
        kind = np.dtype("f4")
        def f(x):
            return la.norm(weights) * sqrt(x), np.zeros(2, kind), float32(1)
        """
    )
    with Elsewhere(()) as there:
        value, zeros, one = there.call(session.capture("f"), 4)
    assert (round(float(value), 6), zeros.dtype.str, type(one).__name__) == (3.464102, "<f4", "float32")


def test_it_is_written_for_older_interpreters() -> None:
    text = Path(loading.__file__ or "").read_text()
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert imported <= set(sys.stdlib_module_names)
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
