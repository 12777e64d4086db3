"""Functions and classes of modules: which folder travels, and under which name they are imported there."""

from __future__ import annotations

import importlib
import json
import os.path
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpulayer
from gpulayer.source import SourceError
from gpulayer.source.capture import CaptureError, capture
from tests.support.sessions import Elsewhere, Session, write_files


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a project, on sys.path and the current one; its modules are forgotten afterwards."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or tmp_path).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    with Elsewhere() as child:
        yield child


Remote = Callable[..., Any]


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Remote:
    """`gl.remote`, as captures know it."""

    class RemoteFunction:
        def __init__(self, function: Any) -> None:
            self.__gpulayer_function__ = function

        def __call__(self, *args: Any) -> Any:
            raise AssertionError("a remote function must travel as what it wraps")

    def decorate(function: Any = None, **options: Any) -> Any:
        return mark if function is None else RemoteFunction(function)

    def mark(function: Any) -> Any:
        return RemoteFunction(function)

    decorate.__gpulayer_decorator__ = True  # type: ignore[attr-defined]
    mark.__gpulayer_decorator__ = True  # type: ignore[attr-defined]
    monkeypatch.setattr(gpulayer, "remote", decorate, raising=False)
    return decorate


def test_a_function_of_a_package(project: Path, elsewhere: Elsewhere) -> None:
    write_files(
        project,
        [
            ("pkg/__init__.py", ""),
            ("pkg/sub/__init__.py", ""),
            (
                "pkg/sub/mod.py",
                "from ..other import K\ndef f(x):\n    return x + K\nclass Model:\n    class Part:\n        n = 3\n",
            ),
            ("pkg/other.py", "K = 5\n"),
        ],
    )
    module = importlib.import_module("pkg.sub.mod")
    captured = capture(module.f)
    assert (captured.name, captured.module, captured.qualname) == ("f", "pkg.sub.mod", "f")
    assert (captured.root, captured.sys_path) == (str(project), ("",))
    assert (captured.source, captured.pieces, captured.data, captured.kind) == ("", (), {}, "function")
    assert elsewhere.call(captured, 1) == 6
    part = capture(module.Model.Part)
    assert (part.qualname, part.kind) == ("Model.Part", "class")
    assert elsewhere.evaluate(part, "made.n") == 3


def test_a_src_layout_travels_as_its_project(
    project: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(
        project,
        [
            ("pyproject.toml", ""),
            ("src/lib/__init__.py", ""),
            ("src/lib/mod.py", "def f():\n    return open(__file__).readline()\n"),
        ],
    )
    monkeypatch.syspath_prepend(project / "src")
    captured = capture(importlib.import_module("lib.mod").f)
    assert (captured.module, captured.root, captured.sys_path) == ("lib.mod", str(project), ("src",))
    assert elsewhere.call(captured) == "def f():\n"


def test_a_folder_that_is_called_src_and_belongs_to_no_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(project, [("src/alone.py", "def f(): pass\n")])
    monkeypatch.syspath_prepend(project / "src")
    captured = capture(importlib.import_module("alone").f)
    assert (captured.root, captured.sys_path) == (str(project / "src"), ("",))


def test_a_package_without_init(project: Path, elsewhere: Elsewhere) -> None:
    write_files(project, [("space/deep/mod.py", "def f(): return __name__\n")])
    captured = capture(importlib.import_module("space.deep.mod").f)
    assert (captured.module, captured.root) == ("space.deep.mod", str(project))
    assert elsewhere.call(captured) == "space.deep.mod"


def test_functions_of_python_and_of_what_is_installed_travel_by_name_alone() -> None:
    import numpy

    for function, module, qualname in (
        (json.dumps, "json", "dumps"),
        (os.path.join, "os.path", "join"),
        (len, "builtins", "len"),
        (numpy.sum, "numpy", "sum"),
        (numpy.add, "numpy", "add"),
        (json.JSONDecoder, "json", "JSONDecoder"),
    ):
        captured = capture(function)
        assert (captured.module, captured.qualname) == (module, qualname)
        assert (captured.root, captured.sys_path, captured.pieces) == (None, (), ())


def test_modules_that_decorate_with_gl_remote_need_no_gpulayer_there(
    project: Path, elsewhere: Elsewhere, remote: Remote
) -> None:
    text = """
        import gpulayer as gl
        from gpulayer import remote

        @remote
        def helper(x):
            return x + 1

        @gl.remote(devices=1)
        def f(x):
            return helper(x) * 2
        """
    write_files(project, [("decorated.py", text)])
    captured = capture(importlib.import_module("decorated").f)
    assert (captured.module, captured.qualname, captured.kind) == ("decorated", "f", "function")
    assert elsewhere.call(captured, 2) == 6
    with Elsewhere(()) as where_it_is_installed:
        assert where_it_is_installed.call(captured, 2) == 6
        session = Session().cell("import gpulayer\ndef f():\n    return gpulayer.__version__, gpulayer.__spec__.name")
        assert where_it_is_installed.call(session.capture("f")) == (gpulayer.__version__, "gpulayer")


def test_functions_that_a_module_does_not_hold_travel_as_source(project: Path, elsewhere: Elsewhere) -> None:
    text = """
        from maker_helpers import more
        STEP = 2
        def make(k):
            def inner(x):
                return more(x) * k + STEP + again(x)
            return inner
        def again(x):
            return x
        """
    write_files(project, [("maker.py", text), ("maker_helpers.py", "def more(x):\n    return x + 1\n")])
    session = Session().cell("import maker\nf = maker.make(10)")
    captured = session.capture("f")
    assert (captured.module, captured.root, captured.sys_path) == ("", str(project), ("",))
    assert elsewhere.call(captured, 1) == 23


def test_local_modules_of_a_notebook_travel_with_its_folder(project: Path, elsewhere: Elsewhere) -> None:
    write_files(
        project,
        [
            ("util.py", "class Config:\n    n = 2\nsettings = Config()\ndef double(x):\n    return 2 * x\n"),
            ("pkg2/__init__.py", ""),
            ("pkg2/deep.py", "K = 7\ndef seven():\n    return K\n"),
        ],
    )
    session = Session().cell(
        "import util as u\nimport pkg2.deep\nfrom util import double as d, settings, Config\nfrom pkg2.deep import K"
    )
    session.cell("def f(x):\n    return d(x) + u.double(x) + pkg2.deep.seven() + settings.n + K + Config.n")
    captured = session.capture("f")
    assert (captured.root, captured.sys_path, captured.data) == (str(project), ("",), {"K": 7})
    assert elsewhere.call(captured, 1) == session["f"](1) == 22


def test_modules_that_are_imported_inside_of_functions(project: Path, elsewhere: Elsewhere) -> None:
    write_files(project, [("later.py", "def three():\n    return 3\n")])
    session = Session().cell(
        "def f():\n    from later import three\n    import json, nowhere_at_all_1\n    return three()"
    )
    captured = session.capture("f")
    assert (captured.root, captured.sys_path) == (str(project), ("",))
    assert "later" not in sys.modules
    session.cell("def f():\n    import json\n    return json.dumps(1)")
    assert session.capture("f").root is None


def test_a_module_beside_and_one_above_the_notebook(
    project: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(
        project,
        [("above.py", "A = [1]\ndef a():\n    return 1\n"), ("notebooks/beside.py", "def b():\n    return 2\n")],
    )
    monkeypatch.chdir(project / "notebooks")
    monkeypatch.syspath_prepend(project / "notebooks")
    session = Session().cell("import above, beside\ndef f():\n    return above.a() + beside.b()")
    captured = session.capture("f")
    assert (captured.root, captured.sys_path) == (str(project), ("notebooks", ""))
    assert elsewhere.call(captured) == 3


def test_folders_of_one_project(project: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(project, [("pyproject.toml", ""), ("src/lib1.py", "def a():\n    return 1\n"), ("notebooks/x.txt", "")])
    monkeypatch.chdir(project / "notebooks")
    monkeypatch.syspath_prepend(project / "src")
    session = Session().cell("import lib1\ndef f():\n    return lib1.a()")
    captured = session.capture("f")
    assert (captured.root, captured.sys_path) == (str(project), ("notebooks", "src"))
    assert elsewhere.call(captured) == 1


def test_folders_that_lie_in_no_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(project, [("one/first1.py", "def a(): pass\n"), ("two/x.txt", "")])
    monkeypatch.chdir(project / "two")
    monkeypatch.syspath_prepend(project / "one")
    session = Session().cell("import first1\ndef f():\n    return first1.a()")
    captured = session.capture("f")
    assert (captured.root, captured.sys_path) == (str(project / "one"), ("",))
    session.cell("def f():\n    return first1.a(), 'x.txt'")
    with pytest.raises(CaptureError) as refused:
        session.capture("f")
    assert str(refused.value) == (
        f"f needs modules ('first1') of folders that do not lie in one project ({project / 'two'}, "
        f"{project / 'one'}): move them into one folder, or install one of them on the workers"
    )


def test_the_notebooks_folder_travels_when_a_text_names_a_file_in_it(project: Path, elsewhere: Elsewhere) -> None:
    write_files(project, [("data/table.csv", "1,2\n")])
    session = Session().cell("name = 'nowhere.csv'\ndef f(x='data/nothing.csv'):\n    return x, name")
    assert session.capture("f").root is None
    session.cell("def f():\n    import os\n    return os.path.exists('data/table.csv')")
    assert session.capture("f").root == str(project)
    session.cell("name = 'data'\ndef f():\n    return name")
    assert session.capture("f").root == str(project)


def test_the_notebooks_folder_is_that_of_its_front_end(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = tmp_path / "elsewhere" / "n.ipynb"
    write_files(tmp_path, [("elsewhere/n.ipynb", ""), ("elsewhere/d.csv", "")])
    session = Session().cell("def f():\n    return 'd.csv'")
    assert session.capture("f").root is None
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))
    assert session.capture("f").root == str(notebook.parent)
    monkeypatch.delenv("JPY_SESSION_NAME")
    session.names["__vsc_ipynb_file__"] = str(notebook)
    assert session.capture("f").root == str(notebook.parent)


def test_scripts_know_their_own_file(project: Path, elsewhere: Elsewhere) -> None:
    text = """
        from pathlib import Path
        def f():
            return (Path(__file__).parent / 'd.txt').read_text(), Path(__file__).name
        """
    write_files(project, [("run/script.py", text), ("run/d.txt", "yes")])
    path = project / "run" / "script.py"
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    captured = capture(names["f"])
    assert (captured.root, captured.file, captured.sys_path) == (str(project / "run"), "script.py", ("",))
    assert captured.pieces[-1].filename == str(path)
    assert elsewhere.call(captured) == ("yes", "script.py")


def test_a_name_that_a_function_of_a_module_lacks(project: Path) -> None:
    text = """
        limit = 3
        def f(x):
            return x * limti
        def late():
            global ready
            ready = 1
        def g():
            return ready, len([limit for k in "ab"])
        import gpulayer
        @gpulayer.remote
        def one(x):
            return x
        def many(xs):
            return [list(one.map(each)) for each in xs]
        def each(xs):
            return [one(x) for x in xs]
        """
    write_files(project, [("lacks.py", text)])
    module = importlib.import_module("lacks")
    with pytest.raises(CaptureError) as refused:
        capture(module.f)
    assert (
        str(refused.value) == "f uses 'limti', which is not defined (did you mean 'limit'?): define it before the call"
    )
    assert isinstance(refused.value, SourceError)
    assert capture(module.g).module == capture(module.each).module == "lacks"
    with pytest.raises(CaptureError, match=r"^many uses one\.map, and where it runs one is a plain function: "):
        capture(module.many)


def test_names_that_a_module_may_lack(project: Path) -> None:
    text = """
        def f():
            try:
                return unicode
            except NameError:
                return str
        class Model:
            def go(self):
                return wieghts
        """
    write_files(project, [("may_lack.py", text)])
    module = importlib.import_module("may_lack")
    assert capture(module.f).module == "may_lack"
    with pytest.raises(CaptureError) as refused:
        capture(module.Model)
    assert str(refused.value) == "Model uses 'wieghts', which is not defined: define it before the call"


def test_the_home_folder_does_not_travel_for_a_module_below_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(project, [("lib/below_home.py", "def a():\n    return 'lib'\n")])
    monkeypatch.setenv("HOME", str(project))
    monkeypatch.syspath_prepend(project / "lib")
    session = Session().cell("import below_home\ndef f():\n    return below_home.a(), 'lib'")
    captured = session.capture("f")
    assert (captured.root, captured.sys_path) == (str(project / "lib"), ("",))


def test_a_module_that_was_made_by_hand(project: Path) -> None:
    session = Session().cell(
        "import types, sys\nmine = types.ModuleType('mine')\nmine.x = 1\ndef f():\n    return mine.x"
    )
    with pytest.raises(CaptureError) as refused:
        session.capture("f")
    assert str(refused.value) == (
        "f uses 'mine', a module, which can't travel: put it into a file beside the notebook and import it"
    )
