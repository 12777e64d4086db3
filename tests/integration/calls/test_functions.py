"""`gl.remote` over real processes: calls, maps, what goes wrong, what is printed."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpulayer as gl
from gpulayer.functions.hub import forget
from gpulayer.functions.options import CallRefused
from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.processes import until
from tests.support.sessions import Session

CELL = """
import os
import sys
import time
import gpulayer as gl

FACTOR = 3

def helper(x):
    return FACTOR * x

@gl.remote
def triple(x):
    return helper(x)

@gl.remote
def pid():
    return os.getpid()

@gl.remote
def fails(x):
    if x == 2:
        raise ValueError(f"no {x}")
    print("got", x)
    return x

@gl.remote
def count(n):
    for number in range(n):
        yield number * number
"""


@pytest.fixture
def session(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A notebook whose functions run on the shared deployment."""
    for name in ("GPULAYER_URL", "GPULAYER_TOKEN", "GPULAYER_FINGERPRINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GPULAYER_DATA", str(deployment.data))
    monkeypatch.setenv("GPULAYER_EMBEDDED", "0")
    forget()
    yield Session().cell(CELL)
    forget()


def test_one_call_many_and_one_that_is_looked_at_later(session: Session) -> None:
    triple = session["triple"]
    assert triple(2) == 6
    assert triple(x=5) == 15
    assert triple.local(1) == 3
    assert list(triple.map(range(2000))) == [3 * x for x in range(2000)]
    assert sorted(triple.map(iter(range(100)), ordered=False)) == [3 * x for x in range(100)]
    assert list(triple.starmap([(1,), (2,)])) == [3, 6]
    assert list(triple.map([])) == []
    results = triple.map(range(5), chunk=2)
    assert len(results) == 5
    assert (next(results), list(results)) == (0, [3, 6, 9, 12])
    call = triple.spawn(7)
    assert call.result(timeout=60) == 21
    assert call.done()
    assert call.result() == 21
    again = gl.call(call.id)
    assert isinstance(again, gl.Call)
    assert again.result() == 21
    many = gl.call(results.id)
    assert isinstance(many, gl.Map)
    assert list(many) == [0, 3, 6, 9, 12]
    assert many.status().state is State.SUCCEEDED
    assert call.status().single


def test_what_is_defined_again_takes_effect_at_the_next_call(session: Session) -> None:
    triple = session["triple"]
    assert triple(2) == 6
    session.cell("FACTOR = 5")
    assert triple(2) == 10
    session.cell("def helper(x):\n    return -x")
    assert triple(2) == -2
    session.cell("TABLE = {'a': 1}\n@gl.remote\ndef look(): return TABLE['a']")
    assert session["look"]() == 1
    session.cell("TABLE['a'] = 2")
    assert session["look"]() == 2


def test_warm_calls_run_in_one_process_and_isolated_ones_in_their_own(session: Session) -> None:
    pid = session["pid"]
    assert len({pid() for _ in range(3)}) == 1
    assert pid() != os.getpid()
    assert len({pid.with_options(isolate=True)() for _ in range(2)}) == 2


def test_a_failure_is_raised_here_with_what_happened_there(session: Session) -> None:
    fails = session["fails"]
    with pytest.raises(ValueError, match="no 2") as raised:
        fails(2)
    assert isinstance(raised.value, gl.RemoteError)
    shown = "".join(traceback.format_exception(raised.value))
    assert f'File "{session.filename}", line 22, in fails' in shown
    assert shown.index("remote traceback") > shown.index("test_a_failure_is_raised")
    assert "runner" not in "\n".join(raised.value.traceback)
    values = list(fails.map(range(4), return_exceptions=True))
    assert values[:2] == [0, 1]
    assert values[3] == 3
    assert isinstance(values[2], ValueError)
    results = fails.map([2, 3], return_exceptions=True)
    assert [type(each).__name__ for each in results] == ["ValueError", "int"]
    assert [type(each).__name__ for each in list(gl.call(results.id))] == ["ValueError", "int"]
    results = fails.map(range(4))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="no 2") as raised:
        next(results)
    failed: Any = raised.value
    assert (failed.index, failed.call) == (2, f"{results.id}[2]")
    assert results.status().state is State.FAILED
    with pytest.raises(ValueError, match="no 2"):
        list(gl.call(results.id))


def test_what_calls_print_appears_here_in_order(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    session.cell(
        """
        @gl.remote
        def talks(x):
            print("out", x)
            print("err", x, file=sys.stderr)
            os.system(f"echo child {x}")
            return x
        """
    )
    assert session["talks"](1) == 1
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == ["child 1", "out 1"]
    assert shown.err == "err 1\n"
    call = session["fails"].spawn(5)
    assert call.result() == 5
    assert call.logs() == "got 5\n"
    again = gl.call(call.id)
    assert isinstance(again, gl.Call)
    assert again.logs() == "got 5\n"
    capsys.readouterr()
    assert list(session["fails"].map([7, 8, 9])) == [7, 8, 9]
    assert sorted(capsys.readouterr().out.splitlines()) == ["got 7", "got 8", "got 9"]


def test_generators_stream_and_async_functions_return(session: Session) -> None:
    count = session["count"]
    items = count(4)
    assert next(items) == 0
    assert list(items) == [1, 4, 9]
    results = count.map([0, 1, 3])
    assert list(results) == [[], [0], [0, 1, 4]] == list(gl.call(results.id))
    call = count.spawn(3)
    assert call.result() == [0, 1, 4] == list(gl.call(call.id))
    again: Any = gl.call(call.id)
    assert again.result() == [0, 1, 4]
    session.cell("import asyncio\n@gl.remote\nasync def waits(x):\n    await asyncio.sleep(0)\n    return x + 1")
    assert session["waits"](1) == 2


def test_the_same_awaited(session: Session) -> None:
    triple, count = session["triple"], session["count"]

    async def look() -> None:
        assert await triple.aio(1) == 3
        assert await asyncio.gather(*(triple.aio(x) for x in range(20))) == [3 * x for x in range(20)]
        assert [each async for each in triple.aio.map(range(50))] == [3 * x for x in range(50)]
        assert [each async for each in triple.aio.starmap([(1,), (2,)])] == [3, 6]
        assert [each async for each in triple.aio.map([])] == []
        assert [each async for each in count.aio.items(3)] == [0, 1, 4]
        assert await (await triple.aio.spawn(4)) == 12
        assert await triple.spawn(5) == 15
        with pytest.raises(ValueError, match="no 2"):
            await session["fails"].aio(2)

    asyncio.run(look())


def test_threads_share_one_connection(session: Session) -> None:
    triple = session["triple"]
    assert triple(0) == 0
    got: list[list[int]] = []

    def calls(start: int) -> None:
        got.append([triple(x) for x in range(start, start + 25)])

    threads = [threading.Thread(target=calls, args=(100 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each[0] for each in got) == [0, 300, 600, 900]
    assert all(values == [values[0] + 3 * step for step in range(25)] for values in got)


def test_many_arguments_of_a_generator_are_taken_as_they_are_needed(session: Session) -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(60_000):
            made.append(number)
            yield number

    results = session["triple"].map(numbers())
    assert next(results) == 0
    assert len(made) < 60_000
    with pytest.raises(TypeError, match="not known yet"):
        len(results)
    assert sum(1 for _ in results) == 59_999
    assert len(results) == 60_000


def test_a_map_that_is_left_early_ends_there_too(session: Session) -> None:
    session.cell("@gl.remote\ndef naps(x):\n    time.sleep(60 if x else 0)\n    return x")
    naps = session["naps"]
    results = naps.map(range(8))
    for value in results:
        assert value == 0
        break
    name = results.id
    del results
    until(lambda: gl.call(name).status().state is State.CANCELLED, "the map is cancelled")
    spawned = naps.spawn(1)
    with pytest.raises(TimeoutError, match=r"is not over after 0\.05 s; it goes on"):
        spawned.result(timeout=0.05)
    spawned.cancel()
    with pytest.raises(gl.JobCancelled, match="was cancelled"):
        spawned.result()


def test_what_can_not_travel_is_told_before_anything_is_sent(session: Session) -> None:
    triple = session["triple"]
    with pytest.raises(CallRefused, match=r"^triple: args\[0\]\['model'\]\[1\] is of type _thread.lock"):
        triple({"model": [1, threading.Lock()]})
    session.cell("@gl.remote\ndef lacks(x): return nosuch(x)")
    with pytest.raises(CallRefused, match="lacks uses 'nosuch', which is not defined"):
        session["lacks"](1)
    with pytest.raises(CallRefused, match=r"triple \(call 1\): args\[0\]"):
        list(triple.map([1, object()]))
    session.cell("@gl.remote\ndef returns_it(): return [object()]")
    with pytest.raises(TypeError, match=r"\[0\] is of type object") as refused:
        session["returns_it"]()
    assert isinstance(refused.value, gl.RemoteError)
    with pytest.raises(gl.JobRejected, match=r"no machine could run call .*cuda"):
        triple.with_options(accelerator="cuda")(1)


def test_time_limits_retries_and_runners_that_die(session: Session, tmp_path: Path) -> None:
    session.cell(
        """
        @gl.remote(timeout_s=0.3)
        def slow(x):
            time.sleep(x)
            return x

        @gl.remote(retries=2, backoff_s=0.01)
        def flaky(path):
            with open(path, "a") as file:
                file.write("x")
            if os.path.getsize(path) < 3:
                raise OSError("not yet")
            return os.path.getsize(path)

        @gl.remote
        def dies():
            os.kill(os.getpid(), 9)
        """
    )
    with pytest.raises(TimeoutError, match=r"0\.3 s"):
        session["slow"](60)
    assert session["slow"](0) == 0
    assert session["flaky"](str(tmp_path / "tried")) == 3
    with pytest.raises(gl.RemoteError, match="SIGKILL"):
        session["dies"]()


def test_an_object_stays_there(session: Session) -> None:
    session.cell(
        """
        @gl.remote
        class Model:
            def __init__(self, weight):
                self.weight = weight
                self.calls = 0

            def predict(self, x):
                self.calls += 1
                return self.weight * x, self.calls

            def each(self, n):
                for number in range(n):
                    yield self.weight + number
        """
    )
    with session["Model"].remote(10) as model:
        assert model.predict(2) == (20, 1)
        assert model.predict.spawn(3).result() == (30, 2)
        assert list(model.predict.map([1, 2])) == [(10, 3), (20, 4)]
        assert list(model.each(2)) == [10, 11]
        with pytest.raises(AttributeError, match=r"has no method 'predic' \(did you mean predict\?\)"):
            _ = model.predic
        other = session["Model"].remote(1)
        assert other.predict(5) == (5, 1)
    with pytest.raises(CallRefused, match="was released"):
        model.predict(1)
    assert asyncio.run(other.predict.aio(1)) == (1, 2)
    assert session["Model"].local(4).predict(2) == (8, 1)


@pytest.mark.parametrize("beside", [True, False])
def test_large_values_are_sent_once(session: Session, monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    if not beside:  # as to a control plane on another machine
        monkeypatch.setattr("gpulayer.functions.blobs._beside", lambda endpoint: None)
    numpy: Any = pytest.importorskip("numpy")
    session.cell("@gl.remote\ndef scaled(a, k): return a * k")
    array = numpy.arange(100_000, dtype=numpy.float64) + (0 if beside else 0.25)
    scaled = session["scaled"]
    assert numpy.array_equal(scaled(array, 2.0), array * 2)
    shared = gl.put(array)
    assert [each[-1] for each in scaled.map([shared] * 3, [1.0, 2.0, 3.0])] == [array[-1] * k for k in (1, 2, 3)]
    assert numpy.array_equal(scaled(a=shared, k=1.0), array)


def test_a_module_of_a_project_travels_with_its_folder(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "farwork.py").write_text(
        "import gpulayer as gl\nimport farhelp\n\n@gl.remote\ndef told(x):\n    return farhelp.word() * x\n"
    )
    (tmp_path / "farhelp.py").write_text("def word():\n    return 'one'\n")
    (tmp_path / ".gitignore").write_text("left.py\n")
    (tmp_path / "left.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    import farwork  # pyright: ignore[reportMissingImports]

    assert farwork.told(2) == "oneone"
    (tmp_path / "farhelp.py").write_text("def word():\n    return 'another'\n")
    until(lambda: farwork.told(1) == "another", "the file's change takes effect")
    session.cell("@gl.remote\ndef lacks():\n    import farwork\n    import left\n    return left.__name__")
    with pytest.raises(ModuleNotFoundError, match="left") as raised:
        session["lacks"]()
    assert isinstance(raised.value, gl.RemoteError)
    assert raised.value.hint == (
        "left.py was left out by .gitignore line 1 (left.py); include=['left.py'] takes it along"
    )
