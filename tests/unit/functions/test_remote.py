"""Remote functions: what is asked of the control plane, and what is made of its answers."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import gpulayer as gl
from gpulayer.functions.hub import forget
from gpulayer.functions.options import CallRefused
from gpulayer.functions.remote import RemoteFunction
from gpulayer.protocol.records import Kind
from gpulayer.protocol.types import Problem, Reason, State
from tests.support.processes import until
from tests.support.sessions import Session
from tests.unit.functions.conftest import Prints, Runs

CELL = """
import gpulayer as gl

@gl.remote
def f(x, y=0):
    '''What it does.'''
    return x

@gl.remote(name="named", retries=2, timeout_s=5, max_runners=3, env={"A": "1"}, memory_limit="2GB", ram="1GB")
def g(x):
    yield x

@gl.remote
class Model:
    def __init__(self, w):
        self.w = w
    def predict(self, x):
        return x
    def each(self, n):
        yield n
    @property
    def size(self):
        return self.w
"""


@pytest.fixture
def session() -> Session:
    return Session().cell(CELL)


def test_a_function_stays_what_it_was_for_who_reads_it(session: Session) -> None:
    f = session["f"]
    assert isinstance(f, gl.RemoteFunction)
    assert (getattr(f, "__name__", ""), f.__doc__, repr(f)) == ("f", "What it does.", "<gpulayer function f>")
    assert f.local(3, y=4) == 3
    assert isinstance(f.with_options(devices=2, accelerator="cuda"), RemoteFunction)


def test_a_call_and_how_it_is_to_be_run(runs: Runs, session: Session) -> None:
    runs.work = lambda x, y=0: [x, y]
    assert session["f"](1, y=2) == [1, 2]
    opened, spec = runs.opened[0], runs.specs[0]
    assert (opened.map.single, opened.map.total, opened.last, opened.map.name) == (True, 1, True, "f")
    assert spec.calls is not None
    assert (spec.name, spec.calls.function.name, spec.calls.function.kind) == ("f", "f", "function")
    assert "return x" in spec.calls.function.pieces[-1].text
    runs.work = lambda x: range(x)
    assert list(session["g"](3)) == [0, 1, 2]
    opened, spec = runs.opened[1], runs.specs[1]
    assert (opened.map.stream, opened.map.retries, opened.map.timeout_s, opened.map.name) == (True, 2, 5, "named")
    assert spec.calls is not None
    assert (spec.calls.max_runners, spec.calls.env, spec.calls.memory_limit_bytes) == (3, {"A": "1"}, 2 * 10**9)
    assert (spec.name, spec.requirements.ram_bytes) == ("named", 10**9)


def test_the_same_function_is_the_same_job_until_it_changes(runs: Runs, session: Session) -> None:
    f = session["f"]
    for x in range(3):
        assert f(x) == x
    assert len({opened.job for opened in runs.opened}) == 1
    assert len({opened.key for opened in runs.opened}) == 3
    old = runs.opened[0].job
    session.cell("@gl.remote\ndef f(x):\n    return -x")
    session["f"](1)
    assert runs.opened[-1].job != old


def test_a_map_gives_results_as_they_come(runs: Runs, session: Session) -> None:
    f = session["f"]
    results = f.map(range(1000))
    assert len(results) == 1000
    assert (next(results), next(results)) == (0, 1)
    assert list(results) == list(range(2, 1000))
    assert results.id == "job1.1"
    assert results.progress is not None
    assert list(f.map(iter("abc"))) == ["a", "b", "c"]
    runs.work = lambda x, y: x + y
    assert list(f.map([1, 2], [3, 4, 5])) == [4, 6]
    assert list(f.starmap([(1, 2), (3, 4)])) == [3, 7]
    count = len(runs.opened)
    assert list(f.map([])) == []
    assert len(runs.opened) == count
    assert repr(f.map([])) == "<gpulayer map of nothing>"
    with pytest.raises(CallRefused, match="chunk=0"):
        f.map([1], chunk=0)
    with pytest.raises(CallRefused, match="chunk='x' is no number of calls"):
        f.map([1], chunk="x")


def test_arguments_are_taken_only_as_there_is_room(runs: Runs, session: Session) -> None:
    taken: list[int] = []

    def numbers() -> Any:
        for number in range(40_000):
            taken.append(number)
            yield number

    runs.holds.clear()
    results = session["f"].map(numbers())
    assert len(taken) <= 64
    assert results.total is None
    runs.holds.set()
    assert next(results) == 0
    assert len(taken) <= 16_384 + 1024
    assert sum(1 for _ in results) == 39_999


def test_what_a_generator_gave_is_on_its_way_while_it_thinks(runs: Runs, session: Session) -> None:
    sent: list[int] = []

    def numbers() -> Any:
        yield from range(30)
        until(lambda: len(called) >= 15, "half of them run meanwhile")
        sent.extend(called)
        yield 30

    called: list[int] = []
    runs.work = lambda x: called.append(x) or x
    assert list(session["f"].map(numbers())) == list(range(31))
    assert sent[:15] == list(range(15))


def test_a_map_that_nobody_reads_any_more_is_cancelled(runs: Runs, session: Session) -> None:
    f = session["f"]
    for _ in f.map(iter(range(10_000))):
        break
    until(lambda: runs.cancelled == ["job1.1"], "left by break")
    dropped = f.map(iter(range(10_000)))
    assert dropped.id == "job2.1"
    del dropped
    gc.collect()
    until(lambda: runs.cancelled == ["job1.1", "job2.1"], "dropped")
    with f.map(iter(range(10_000))) as results:
        assert results.id == "job3.1"
    until(lambda: len(runs.cancelled) == 3, "closed")
    call = f.spawn(1)
    assert call.id == "job4.1"
    del call
    gc.collect()
    assert f(1) == 1
    assert len(runs.cancelled) == 3


def test_a_map_that_was_cancelled_says_so(runs: Runs, session: Session) -> None:
    results = session["f"].map(iter(range(100_000)))
    assert next(results) == 0
    results.cancel()
    with pytest.raises(gl.JobCancelled, match=r"map job1\.1 was cancelled"):
        list(results)
    assert list(results) == []


def test_what_a_call_raised_is_raised(runs: Runs, session: Session) -> None:
    f = session["f"]

    def work(x: int, y: int = 0) -> int:
        if x == 2:
            raise KeyError("k")
        return x

    runs.work = work
    with pytest.raises(KeyError) as raised:
        f(2)
    error = raised.value
    assert isinstance(error, gl.RemoteError)
    assert (str(error), error.worker, error.call) == ("'k'", "box", "job1.1")
    assert error._render_traceback_()[0] == "Traceback (most recent call last):"
    results = f.map(range(5))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(KeyError):
        next(results)
    values = list(f.map(range(5), return_exceptions=True))
    assert [type(value).__name__ for value in values] == ["int", "int", "KeyError", "int", "int"]
    call = f.spawn(2)
    for _ in range(2):
        with pytest.raises(KeyError):
            call.result()


def test_what_calls_write_appears_on_their_streams(
    runs: Runs, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(x: int, y: int = 0) -> int:
        smile = "☺".encode()
        raise Prints(
            x,
            (Kind.CALL_STDOUT, b"out " + smile[:1]),
            (Kind.CALL_STDERR, b"err\n"),
            (Kind.CALL_STDOUT, smile[1:] + b"\n"),
        )

    runs.work = work
    call = session["f"].spawn(5)
    assert call.result() == 5
    assert capsys.readouterr() == ("out ☺\n", "err\n")
    assert call.logs() == "out err\n☺\n"


def test_the_files_that_lack_are_sent_and_it_is_asked_again(
    runs: Runs, session: Session, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "nearby.py").write_text("")
    sent: list[str] = []
    monkeypatch.setattr(
        "gpulayer.functions.hub.Folder.send", lambda folder, bundle, endpoint, tell: sent.append(bundle.manifest.digest)
    )
    runs.refusals.append(Problem(status=409, code="bundle_unknown", title="the control plane lacks the source"))
    f = session["f"].with_options(source=tmp_path / "src")
    assert f(3) == 3
    assert runs.opened[0] == runs.opened[1]
    calls = runs.specs[0].calls
    assert calls is not None
    assert sent == [calls.function.bundle]
    runs.refusals.append(Problem(status=400, code="bad_map", title="no such thing"))
    with pytest.raises(gl.RequestRefused, match="no such thing"):
        f(4)


def test_what_can_not_travel(runs: Runs, session: Session) -> None:
    f = session["f"]
    with pytest.raises(CallRefused, match=r"^f: kwargs\['y'\]\[0\] is of type object"):
        f(1, y=[object()])
    with pytest.raises(CallRefused, match=r"^f \(call 2\): args\[0\]"):
        f.map([1, 2, object()])
    assert not runs.opened
    session.cell("class Plain:\n    @gl.remote\n    def method(self): return 1")
    with pytest.raises(CallRefused, match="is a method, whose object would have to travel"):
        session["Plain"]().method()


def test_arguments_that_it_does_not_take(runs: Runs, session: Session) -> None:
    f = session["f"]
    for act in (
        lambda: f(1, z=2),
        lambda: f.spawn(),
        lambda: f.map([1], [2], [3]),
        lambda: asyncio.run(f.aio(1, 2, 3)),
        lambda: f.aio.map([1], [2], [3]),
        lambda: session["Model"].remote(),
        lambda: session["Model"].remote(1).predict(),
    ):
        with pytest.raises(CallRefused, match="argument"):
            act()
    assert not runs.opened
    with pytest.raises(CallRefused, match=r"f \(call 1\): too many positional arguments; it is f\(x, y=0\)"):
        list(f.starmap([(1, 2), (1, 2, 3)]))
    with pytest.raises(CallRefused, match="starmap takes a tuple of arguments for each call; of call 0 it is int: 5"):
        list(f.starmap([5]))
    with pytest.raises(CallRefused, match="17 is no call's id"):
        gl.call(17)  # pyright: ignore[reportArgumentType]


def test_the_same_in_every_call(runs: Runs, session: Session) -> None:
    runs.work = lambda x, y: (x, y)
    results = session["f"].map(range(3), itertools.repeat(5))
    assert (len(results), list(results)) == (3, [(0, 5), (1, 5), (2, 5)])
    assert len(session["f"].map(range(3), itertools.repeat(5, 2))) == 2


def test_options_that_can_not_be() -> None:
    for options, words in {
        "retries=-1": "no number of retries",
        "timeout_s=0": "leaves no time",
        "max_runners=0": "nobody",
        "include='a'": r"is one text; give a list: \['a'\]",
        "memory_limit='much'": "is no size",
        "env={'1': ''}": "no name of a variable",
        "env={'GPULAYER_X': ''}": "set by GPUlayer",
        "nodes=2, accelerator='cuda'": "a call runs on one machine",
        "accelerator='couda'": "accelerator",
    }.items():
        with pytest.raises(CallRefused, match=words):
            eval(f"gl.remote({options})", {"gl": gl})
    with pytest.raises(TypeError, match="did you mean accelerator"):
        eval("gl.remote(acelerator='cuda')", {"gl": gl})
    with pytest.raises(TypeError, match="did you mean timeout_s"):
        eval("gl.remote(timeout=3)", {"gl": gl})
    with pytest.raises(CallRefused, match="needs a function or a class"):
        eval("gl.remote(3)", {"gl": gl})
    with pytest.raises(CallRefused, match="is a remote function already"):
        eval("gl.remote(gl.remote(len))", {"gl": gl})


def test_one_that_no_machine_can_take(runs: Runs, session: Session) -> None:
    reason = Reason(worker="box", code="devices", text="needs 1 cuda device, worker has 0")
    runs.views.append({"state": State.REJECTED, "reasons": (reason,), "nearest": "add one"})
    with pytest.raises(gl.JobRejected, match=r"no machine could run call job1.1: box: needs 1 cuda .*nearest: add one"):
        session["f"](1)


def test_an_object_is_one_job_and_is_let_go(runs: Runs, session: Session) -> None:
    runs.work = lambda x: x
    with session["Model"].remote(7) as model:
        assert model.predict(1) == 1
        assert list(model.predict.map([2, 3])) == [2, 3]
        assert runs.opened[0].job == runs.opened[1].job
        calls = runs.specs[0].calls
        assert calls is not None
        assert (calls.stateful, runs.opened[0].map.method) == (True, "predict")
        assert calls.function.kind == "class"
    until(lambda: runs.ended == ["job2"], "released by with")
    other = session["Model"].remote(7)
    with pytest.raises(AttributeError, match=r"Model\.w can't be set from here; .*: a method sets it"):
        other.w = 3
    with pytest.raises(AttributeError, match=r"Model has no method 'predicts' \(did you mean predict\?\)"):
        other.predicts(1)
    with pytest.raises(AttributeError, match=r"Model has 'size' as a property, not as a method; what an object keeps"):
        other.size()
    assert other.predict(1) == 1
    assert runs.opened[2].job != runs.opened[0].job
    del other
    gc.collect()
    until(lambda: runs.ended == ["job2", "job3"], "released by the garbage collector")
    with pytest.raises(CallRefused, match="was released"):
        model.predict(1)
    with pytest.raises(CallRefused, match=r"make it there by Model.remote"):
        session["Model"](7)


def test_when_the_process_ends_nothing_of_it_stays(runs: Runs, session: Session) -> None:
    kept = session["f"].spawn(1)
    assert kept.result() == 1
    model = session["Model"].remote(7)
    assert model.predict(1) == 1
    results = session["f"].map(iter(range(10_000)))
    forget()
    until(lambda: runs.cancelled == ["job3.1"], "the map")
    until(lambda: runs.ended == ["job2"], "the object")
    del results


def test_awaited(runs: Runs, session: Session) -> None:
    f, g = session["f"], session["g"]

    async def look() -> None:
        assert await asyncio.gather(*(f.aio(x) for x in range(30))) == list(range(30))
        assert [each async for each in f.aio.map(range(300))] == list(range(300))
        runs.work = lambda x: range(x)
        assert [each async for each in g.aio.items(3)] == [0, 1, 2]
        runs.work = lambda x: x
        runs.holds.clear()
        waits = asyncio.ensure_future(f.aio(1))
        await asyncio.to_thread(until, lambda: len(runs.opened) == 33, "it is on its way")
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits

    asyncio.run(look())
    runs.holds.set()
    until(lambda: len(runs.cancelled) == 1, "the one that was not awaited any more")


def test_an_interrupt_cancels_what_is_waited_for(runs: Runs, session: Session) -> None:
    f = session["f"]
    assert f(1) == 1
    runs.holds.clear()
    interrupted(runs, lambda: f(2), opened=2)
    assert f(3) == 3


def test_an_interrupt_leaves_what_goes_on_without_this_process(runs: Runs, session: Session) -> None:
    runs.holds.clear()
    results = session["f"].map(range(3))
    results.detach()
    interrupted(runs, lambda: list(results), opened=1)
    assert session["f"](3) == 3
    assert not runs.cancelled


def interrupted(runs: Runs, act: Callable[[], object], *, opened: int) -> None:
    """An interrupt comes once so many maps are open, and this waits for results; the calls are held until then."""

    def interrupt() -> None:
        until(lambda: len(runs.opened) == opened, "the call is on its way")
        until(lambda: signal.getsignal(signal.SIGINT) is not signal.default_int_handler, "somebody waits for it")
        os.kill(os.getpid(), signal.SIGINT)
        runs.holds.set()

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            act()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)


def test_a_call_is_found_again(runs: Runs, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    call = session["f"].spawn(5)
    assert call.result() == 5
    view = call._run.subscription.view
    monkeypatch.setattr("gpulayer.functions.handles.status_of", lambda name: view)
    again = gl.call(call.id)
    assert isinstance(again, gl.Call)
    assert again.result() == 5
    results = session["f"].map([1, 2])
    assert list(results) == [1, 2]
    view = results._run.subscription.view  # pyright: ignore[reportOptionalMemberAccess]
    many = gl.call(results.id)
    assert isinstance(many, gl.Map)
    assert (len(many), list(many)) == (2, [1, 2])
