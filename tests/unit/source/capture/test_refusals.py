"""What can't travel is refused by name, in one line that says what to do."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gpulayer.source.capture import CaptureError, capture
from tests.support.sessions import Session

_MAKE = "make it inside the function, or pass what it is made of as an argument"
_OPEN = "open it inside the function, or pass what it is made of as an argument"

USES: dict[str, tuple[str, str]] = {
    "import sqlite3\nconn = sqlite3.connect(':memory:')\ndef f():\n    return conn": (
        "conn",
        f"f uses 'conn', a sqlite3.Connection, which can't travel: {_OPEN}",
    ),
    "import threading\nlock = threading.Lock()\ndef f():\n    with lock:\n        pass": (
        "",
        f"f uses 'lock', a _thread.lock, which can't travel: {_MAKE}",
    ),
    "file = open('/dev/null')\ndef f():\n    return file.read()": (
        "file",
        f"f uses 'file', an io.TextIOWrapper, which can't travel: {_OPEN}",
    ),
    "items = (n for n in [1])\ndef f():\n    return list(items)": (
        "",
        "f uses 'items', a generator, which can't travel: "
        "pass list(x) of it as an argument, or make it inside the function",
    ),
    "class Config:\n    pass\nconfig = Config()\ndef f():\n    return config": (
        "",
        f"f uses 'config', a Config, which can't travel: {_MAKE}",
    ),
    "class A:\n    def go(self): pass\ngo = A().go\ndef f():\n    return go()": (
        "",
        "f uses 'go', a method, which can't travel: call it inside the function on an object that is made there",
    ),
    "import functools\ndef g(a): pass\npart = functools.partial(g, 1)\ndef f():\n    return part()": (
        "",
        "f uses 'part', a functools.partial, which can't travel: write it as a function with def",
    ),
    "def get_ipython(): pass\nget_ipython = get_ipython.__call__\ndef f():\n    return get_ipython().system('ls')": (
        "",
        "f uses 'get_ipython' (a magic or a ! command is one too), which is there only in this notebook: "
        "use subprocess or plain Python in the function",
    ),
    "table = [1, {'a': print}]\ndef f():\n    return table": (
        "",
        "f uses 'table', which can't travel: table[1]['a'] is of type builtin_function_or_method, "
        "which does not travel: make 'table' inside the function, or name the functions and classes there one by one",
    ),
    "from collections import defaultdict\ntable = defaultdict(list)\ndef f():\n    return table": (
        "",
        "f uses 'table', which can't travel: table is of type collections.defaultdict, which does not travel: "
        "it is a subclass, give dict(x)",
    ),
    "scales = 3\ndef f(x):\n    return x * scale": (
        "",
        "f uses 'scale', which is not defined (did you mean 'scales'?): define it before the call",
    ),
    "def f(x):\n    return [[zeta for _ in range(2)] for _ in range(x)]": (
        "",
        "f uses 'zeta', which is not defined: define it before the call",
    ),
    "def helper(x):\n    return x * zeta\ndef f(x):\n    return helper(x)": (
        "",
        "helper (needed by f) uses 'zeta', which is not defined: define it before the call",
    ),
    "import threading\nlock = threading.Lock()\nclass Base:\n    def go(self):\n        return lock\n"
    "class A(Base):\n    pass\ndef f():\n    return A().go()": (
        "",
        f"Base (needed by f) uses 'lock', a _thread.lock, which can't travel: {_MAKE}",
    ),
    "import functools\ndef retry(function):\n    @functools.wraps(function)\n    def wrapper(): pass\n"
    "    return wrapper\ndef g(): pass\nf = retry(g)": (
        "",
        "a wrapper around g was made by a call and not by a decorator (g: FILE, line 6), so its source does not tell "
        "what it does: decorate g, or call the wrapper inside of a function",
    ),
    "import functools\n@functools.singledispatch\ndef f(x): pass\n@f.register\ndef _(x: int): pass": (
        "",
        "f is a single-dispatch function, and what is registered with it can't travel: "
        "put it into a module, or tell the types apart inside the function",
    ),
    "def make():\n    def a(n): return b(n)\n    def b(n): return a(n)\n    return a\nf = make()": (
        "",
        "make.a and make.b need each other when they are defined: define them outside of functions",
    ),
    "import threading\ndef make(k):\n    def inner(n=k): pass\n    return inner\nf = make(threading.Lock())": (
        "",
        "the definition of make.inner uses 'k', a variable of the function around it that is gone (FILE, line 3): "
        "define inner outside of that function",
    ),
    "import threading\ndef make(k):\n    def inner(): return k\n    return inner\nf = make(threading.Lock())": (
        "",
        f"make.inner uses 'k', a _thread.lock, which can't travel: {_MAKE}",
    ),
    "def make():\n    def inner(): return late\n    if False: late = 1\n    return inner\nf = make()": (
        "",
        "make.inner uses 'late' of the function around it, which has no value yet: define it before the call",
    ),
    "class A: pass\nA.go = lambda self: 1\ndef f():\n    return A().go()": (
        "",
        "method 'go' of class A was set from outside of the class: "
        "write it into the class, or into one that inherits from it",
    ),
    "f, g = lambda x: x, lambda x: x + 1": (
        "",
        "a lambda is one of 2 lambdas on one line (FILE, line 1): write it as a function with def",
    ),
    "def f():\n    from .mine import x": (
        "",
        "f imports from '.mine', relative to its own module: give the module's full name there",
    ),
    "exec('def f(): pass')": (
        "",
        "the source of f can't be found (it was made in '<string>'): define it in a cell, a script or a module",
    ),
    "exec(compile('def f(): pass', '<timed exec>', 'exec'))": (
        "",
        "the source of f can't be found: define it in a cell without %%time",
    ),
    "exec('class f: pass')": (
        "",
        "class f was made by no class statement that can be found: write one in a cell, a script or a module",
    ),
    "async def f():\n    yield 1": (
        "",
        "f is an async generator, which can't run there: make it a generator (def with yield), "
        "or collect its items and return a list",
    ),
    "import functools\nf = functools.partial(print, 1)": (
        "",
        "a functools.partial can't travel: give the function, and the arguments in each call, "
        "or write a function with def",
    ),
    "class A:\n    def go(self): pass\nf = A().go": (
        "",
        "A.go is a bound method: decorate the class, or make it a function",
    ),
    "class A:\n    @classmethod\n    def go(cls): pass\nf = A.__dict__['go']": (
        "",
        "A.go is a classmethod: decorate the class, or make it a function",
    ),
    "class A:\n    def __call__(self): pass\nf = A()": (
        "",
        "an A can be called, but is no function: write a function with def that makes and calls it",
    ),
    "class A:\n    @staticmethod\n    def go(): pass\nf = A.__dict__['go']": (
        "",
        "A.go is a staticmethod: write @gl.remote below @staticmethod, or make it a function",
    ),
    "import gpulayer as gl\n@gl.remote\ndef g(x): pass\ndef h(): return [g.local(1), g.map([1])]\ndef f(): h()": (
        "",
        "h (needed by f) uses g.local, and where it runs g is a plain function: g(…) calls it right there, "
        "or use g.local here, around h",
    ),
    "import gpulayer as gl\n@gl.remote\nclass M: pass\ndef f():\n    return M.remote().go()": (
        "",
        "f uses M.remote, and where it runs M is a plain class: M(…) makes an object right there, "
        "or use M.remote here, around f",
    ),
    "f = [1]": ("", "a list is no function: give a function or a class"),
}


def test_remote_functions_are_plain_ones_inside_of_others() -> None:
    session = Session().cell("import gpulayer as gl\n@gl.remote\ndef g(x): pass\ng.__gpulayer_function__.mark = 1")
    session.cell("def f(x):\n    if hasattr(x, 'g'):\n        g = x\n        g.map([])\n    return x")
    assert [piece.slot for piece in session.capture("f").pieces] == ["f"]  # another g
    session.cell("def f(x): return g(x), g.__name__")
    assert [piece.slot for piece in session.capture("f").pieces] == ["f", "g"]


@pytest.mark.parametrize("cell", USES)
def test_it_is_refused_in_one_line(cell: str) -> None:
    closes, text = USES[cell]
    session = Session().cell(cell)
    with pytest.raises(CaptureError) as refused:
        session.capture("f")
    assert str(refused.value) == text.replace("FILE", session.filename)
    if closes:
        session[closes].close()


def test_data_beyond_the_limit() -> None:
    session = Session().cell("table = b'1' * 2_000_000\nbeside = 'x' * 600_000\nother = [1.5] * 60_000")
    session.cell("def f():\n    return table\ndef g():\n    return beside, other")
    with pytest.raises(CaptureError) as refused:
        session.capture("f")
    assert str(refused.value) == (
        "f uses 'table', 2 MB of data, and a function takes along at most 1 MB: "
        "pass it as an argument, or gl.put it once and pass the reference"
    )
    with pytest.raises(CaptureError) as refused:
        session.capture("g")
    assert str(refused.value) == (
        "g uses 'other' together with 'beside', 1.14 MB of data, and a function takes along at most 1 MB: "
        "pass it as an argument, or gl.put it once and pass the reference"
    )
    assert session.capture("f", data_limit_bytes=3_000_000).data == {"table": session["table"]}


def test_arrays_are_data_and_arrays_of_objects_are_not() -> None:
    session = Session().cell("import numpy as np\nweights = np.arange(3)\nthings = np.array([print])")
    session.cell("def f():\n    return weights\ndef g():\n    return things")
    assert session.capture("f").data["weights"] is session["weights"]
    with pytest.raises(CaptureError, match=r"^g uses 'things', which can't travel: things has the dtype object, "):
        session.capture("g")


def test_a_function_typed_at_the_prompt() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("def f(): pass", "<stdin>", "exec", dont_inherit=True), names)
    with pytest.raises(CaptureError) as refused:
        capture(names["f"])
    text = str(refused.value)
    assert text.startswith("f was typed at the prompt of Python 3.")
    assert text.endswith(", which keeps no source: put it into a file or a notebook")


def test_a_script_that_was_edited_while_it_runs(tmp_path: Any) -> None:
    path = tmp_path / "script.py"
    path.write_text("def f(x):\n    return x\n")
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    assert capture(names["f"]).pieces[-1].text == "def f(x):\n    return x"
    path.write_text("\n\ndef f(x):\n    return x + 1\n")
    with pytest.raises(CaptureError) as refused:
        capture(names["f"])
    assert str(refused.value) == (
        f"the source of f is not what it was when it was defined ({path}, line 1): run what defines it again"
    )


def test_two_things_of_one_name() -> None:
    session = Session().cell("scale = [1]\ndef f():\n    return scale, helper()")
    second = Session().cell("scale = [2]\ndef helper():\n    return scale")
    session.names["helper"] = second["helper"]
    with pytest.raises(CaptureError) as refused:
        session.capture("f")
    assert str(refused.value) == (
        "f and what it needs use two different things that are both called 'scale', of two modules: rename one of them"
    )


def test_a_chain_of_helpers_that_is_too_long() -> None:
    lines = [f"def f{n}():\n    return f{n + 1}()" for n in range(sys.getrecursionlimit() // 2)]
    session = Session().cell("\n".join([*lines, f"def f{len(lines)}():\n    return 1"]))
    with pytest.raises(CaptureError) as refused:
        session.capture("f0")
    assert str(refused.value) == "f0 needs too long a chain of functions to follow: put them into a module"
