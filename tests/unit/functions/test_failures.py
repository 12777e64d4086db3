"""What a call raises here that went wrong there."""

from __future__ import annotations

import traceback

import msgspec
import pytest

from gpulayer.client.errors import JobCancelled, JobFailed, JobRejected, RemoteError
from gpulayer.functions.failures import call_error, failure_of, map_error
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
