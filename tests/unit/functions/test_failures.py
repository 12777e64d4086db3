"""What a call raises here that went wrong there."""

from __future__ import annotations

import builtins
import json
import sys
import traceback
from pathlib import Path

import msgspec
import pytest

from gpulayer.client.errors import JobCancelled, JobFailed, JobRejected, RemoteError
from gpulayer.functions.failures import call_error, failure_of, map_error, what_helps
from gpulayer.protocol.calls import CallFailure, MapView
from gpulayer.protocol.types import Reason, Requirements, State

SHOWN = (
    'Traceback (most recent call last):\n  File "cell 3", line 2, in f\n    1 / 0\nZeroDivisionError: division by zero'
)


def made(kind: str = "raised", name: str = "", text: str = "", shown: str = "") -> RemoteError:
    return call_error(CallFailure(kind=kind, type=name, text=text, traceback=shown, worker="box"), call="k.1")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("ValueError", ValueError),
        ("KeyError", KeyError),
        ("ModuleNotFoundError", ImportError),
        ("FileNotFoundError", OSError),
        ("UnicodeDecodeError", ValueError),
        ("RecursionError", RuntimeError),
        ("ExceptionGroup", RemoteError),
        ("StopIteration", RemoteError),
        ("KeyboardInterrupt", RemoteError),
        ("SystemExit", RemoteError),
        ("Exception", RemoteError),
        ("print", RemoteError),
        ("mine.Special", RemoteError),
    ],
)
def test_it_is_of_the_class_that_programs_look_for(name: str, base: type[BaseException]) -> None:
    error = made(name=name, text="it's wrong")
    assert isinstance(error, base)
    assert isinstance(error, RemoteError)
    assert type(error).__name__ == name.rpartition(".")[2]
    assert str(error) == "it's wrong"
    assert (error.call, error.worker) == ("k.1", "box")
    if name in ("KeyboardInterrupt", "SystemExit", "StopIteration"):
        assert not isinstance(error, (KeyboardInterrupt, SystemExit, StopIteration))


class Mine(KeyError):
    """It wants more than a text."""

    def __init__(self, key: str, more: int):
        super().__init__(key)
        self.more = more


class Hooked(ValueError):
    def __init_subclass__(cls) -> None:
        raise SystemExit


@pytest.mark.parametrize("kind", [Mine, Hooked, msgspec.ValidationError, json.JSONDecodeError])
def test_it_is_of_a_class_that_is_loaded_here(kind: type[Exception]) -> None:
    name = f"{kind.__module__}.{kind.__qualname__}"
    base = next(each.__name__ for each in kind.__mro__ if each.__module__ == "builtins")
    error = call_error(CallFailure(kind="raised", type=name, base=base, text="it's wrong"))
    assert isinstance(error, kind) is (kind is not Hooked)
    assert isinstance(error, getattr(builtins, base))
    assert (type(error).__name__, str(error)) == (kind.__name__, "it's wrong")


def test_a_class_of_the_session_and_one_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Mine, raising=False)
    failure = CallFailure(kind="raised", type="Mine", base="KeyError", text="no")
    assert isinstance(call_error(failure), Mine)
    monkeypatch.delattr(sys.modules["__main__"], "Mine")
    error = call_error(failure)
    assert not isinstance(error, Mine)
    assert isinstance(error, KeyError)
    assert "".join(traceback.format_exception_only(type(error), error)).startswith("Mine: no")
    nobodys = call_error(CallFailure(kind="raised", type="far.Away", base="OSError", text="no"))
    assert isinstance(nobodys, OSError)
    assert f"{type(nobodys).__module__}.{type(nobodys).__qualname__}" == "far.Away"


def test_cells_are_called_as_they_are_here() -> None:
    shown = SHOWN.replace("cell 3", "cell of f")
    failure = failure_of(msgspec.json.encode(CallFailure(kind="raised", traceback=shown)), {"cell of f": "cell 3"})
    assert failure.traceback == SHOWN


def test_a_file_that_is_here_and_did_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rates.csv").write_text("1")

    def hint(path: str, kind: str = "raised") -> str:
        text = f"[Errno 2] No such file or directory: '{path}'"
        return what_helps(CallFailure(kind=kind, type="FileNotFoundError", text=text), "f", None)

    assert (
        hint("rates.csv")
        == "rates.csv is here, and no file travels with f: gl.remote(source='.') takes this folder along"
    )
    assert [hint("other.csv"), hint(str(tmp_path / "rates.csv")), hint("rates.csv", "died")] == ["", "", ""]


def test_its_traceback_stands_under_ours() -> None:
    error = made(name="ZeroDivisionError", text="division by zero", shown=SHOWN)
    with pytest.raises(ZeroDivisionError) as raised:
        raise error
    shown = "".join(traceback.format_exception(raised.value))
    assert "remote traceback on box:" in shown
    assert 'File "cell 3", line 2, in f' in shown
    assert error._render_traceback_() == SHOWN.splitlines()


def test_what_went_wrong_around_it() -> None:
    assert isinstance(made("timeout", text="timed out after 2 s"), TimeoutError)
    assert isinstance(made("value", text="value[0] is of type object"), TypeError)
    died = made("died", text="ended by SIGKILL")
    assert (type(died).__name__, str(died)) == ("RunnerDied", "ended by SIGKILL")
    assert died.traceback == ["RunnerDied: ended by SIGKILL"]
    hinted = call_error(CallFailure(kind="load", type="ModuleNotFoundError", text="no"), hint="x.py was left out")
    assert hinted._render_traceback_()[-1] == "gpulayer: x.py was left out"


def test_what_can_not_be_read_is_shown() -> None:
    failure = CallFailure(kind="died", text="why")
    assert failure_of(msgspec.json.encode(failure)) == failure
    assert failure_of(b"\xffnonsense").text == "\ufffdnonsense"


def test_a_map_that_ended_otherwise() -> None:
    def ended(state: State, **more: object) -> Exception:
        return map_error(MapView(id="k.2", job="k", state=state, **more), Requirements())  # pyright: ignore

    reason = Reason(worker="box", code="devices", text="has none")
    rejected = ended(State.REJECTED, reasons=(reason,), nearest="add one")
    assert isinstance(rejected, JobRejected)
    assert str(rejected) == "no machine could run map k.2: box: has none (nearest: add one)"
    cancelled = ended(State.CANCELLED, single=True)
    assert isinstance(cancelled, JobCancelled)
    assert str(cancelled) == "call k.2 was cancelled"
    failed = ended(State.FAILED, problem="the disk is full")
    assert isinstance(failed, JobFailed)
    assert str(failed) == "map k.2 failed: the disk is full"
