"""What a call may do in a runner, and what comes back of it. One runner serves all of these: that is its work."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy
import pytest

from gpulayer.protocol.calls import RAISED, VALUE_REFUSED
from gpulayer.protocol.records import Kind
from gpulayer.protocol.values import calls as codec
from gpulayer_worker.runner import wire

SOURCE = """
import asyncio, multiprocessing, os, signal, subprocess, sys, threading, time

kept = []

def f(what, *args, **kwargs):
    return globals()[what](*args, **kwargs)

def echo(*args, **kwargs):
    return (args, kwargs) if kwargs else args[0]

def keep(x):
    kept.append(x)
    return list(kept)

def fail(text):
    raise ValueError(text)

def chained():
    try:
        fail("first")
    except ValueError as error:
        raise KeyError("second") from error

class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")
    __repr__ = __str__

def unprintable():
    raise Unprintable

def deep():
    return deep()

def leave():
    sys.exit(3)

def odd():
    raise ValueError("\\ud800" + "x" * 100_000)

def unsendable():
    return {"model": [object()]}

def say(text):
    print(text)
    sys.stderr.write("e:" + text)

def say_by_thread(text):
    thread = threading.Thread(target=print, args=(text,))
    thread.start()
    thread.join()

def say_by_descriptor(text):
    os.write(1, text.encode())
    subprocess.run([sys.executable, "-c", "import os; os.write(2, b'child')"], check=True)

def say_by_child(text):
    def child():
        print(text)
        sys.stdout.flush()
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    return process.exitcode

def close_streams():
    sys.stdout.close()
    sys.stderr = None

def redirect():
    sys.stdout = open(os.devnull, "w")

def go_away():
    os.chdir("/")
    signal.signal(signal.SIGINT, signal.SIG_IGN)

def where():
    return os.getcwd()

def count(n):
    for i in range(n):
        print("before", i)
        yield i * i

async def later(x):
    await asyncio.sleep(0)
    return x + 1

async def counted(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i

async def leaves_a_task():
    async def forever():
        try:
            await asyncio.sleep(3600)
        finally:
            kept.append("cancelled")
    asyncio.ensure_future(forever())
    await asyncio.sleep(0)

def returns_twice():
    return "child" if os.fork() == 0 else "parent"

def spawned():
    process = multiprocessing.get_context("spawn").Process(target=print, args=("from a child",))
    process.start()
    process.join()
    return process.exitcode

def total(array):
    return float(array.sum())

def identity(array):
    return id(array), bool(array.flags.writeable)

def change(array):
    array[0] = 7
    return float(array[0])

def array(n):
    import numpy
    return {"big": numpy.arange(n), "small": 1}

def bytes_of(n):
    return "x" * n

def alarm():
    def ring(*_):
        raise TimeoutError("rang")
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
"""


class Caller:
    """Calls of the shared runner, each a map of one."""

    def __init__(self, runner: Any, packed: Callable[..., bytes]) -> None:
        self.runner = runner
        self.agent = runner.connect()
        self.agent.next(wire.Ready)
        self.index = 0
        self._packed = packed

    def raw(self, *args: Any, stream: bool = False, blobs: Any = (), data: bytes | None = None) -> Any:
        """The `Done` of one call."""
        self.index += 1
        data = self._packed(*args) if data is None else data
        self.agent.send(wire.Calls("m.1", self.index, [data], stream=stream, blobs=blobs))
        done = self.agent.next(wire.Done)
        assert (done.map, done.first, len(done.codes)) == ("m.1", self.index, 1)
        self.agent.send(wire.Accepted("m.1", self.index, 1))
        return done

    def __call__(self, *args: Any, **options: Any) -> tuple[int, bytes]:
        done = self.raw(*args, **options)
        return done.codes[0], done.data[0]

    def text(self, kind: int = Kind.CALL_STDOUT) -> bytes:
        return self.runner.text(self.index, kind)


@pytest.fixture(scope="module")
def call(make_shared_runner: Callable[..., Any], tools: Any) -> Iterator[Caller]:
    caller = Caller(make_shared_runner(SOURCE), tools.packed)
    yield caller
    caller.agent.close()


def test_a_value_comes_back_as_it_was(call: Caller, tools: Any) -> None:
    for value in (None, 5, (1, "a"), [1.5, {"b": b"c"}], {"x": (1,)}, 2**80, {1, 2}):
        assert tools.value(call("echo", value)) == value
        assert type(tools.value(call("echo", value))) is type(value)


def test_named_arguments_and_many_calls_of_one_frame_come_back_in_order(call: Caller, tools: Any) -> None:
    args = [codec.pack_call(("echo", i), {"k": "v"})[0] for i in range(500)]
    call.agent.send(wire.Calls("m.2", 100, args))
    found = call.agent.results("m.2", 500)
    assert list(found) == list(range(100, 600))
    assert [tools.value(found[100 + i]) for i in range(500)] == [((i,), {"k": "v"}) for i in range(500)]
    call.agent.send(wire.Accepted("m.2", 100, 500))


def test_what_a_module_keeps_is_there_for_the_next_call(call: Caller, tools: Any) -> None:
    call("keep", "a")
    assert tools.value(call("keep", "b"))[-2:] == ["a", "b"]


def test_an_exception_comes_back_with_the_users_lines_only(call: Caller, tools: Any) -> None:
    result = call("fail", "bad luck")
    found = tools.failure(result)
    assert result[0] == RAISED
    assert (found["kind"], found["type"], found["text"], found["worker"]) == ("raised", "ValueError", "bad luck", "box")
    lines = found["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "mine.py" in lines[1]
    assert "executing.py" not in found["traceback"]
    assert "    raise ValueError(text)" in lines
    assert lines[-1] == "ValueError: bad luck"


def test_the_cause_of_an_exception_is_told(call: Caller, tools: Any) -> None:
    trace = tools.failure(call("chained"))["traceback"]
    assert trace.index("ValueError: first") < trace.index("direct cause") < trace.index("KeyError: 'second'")


@pytest.mark.parametrize(
    ("what", "type_name", "text"),
    [
        ("unprintable", "mine.Unprintable", "its text can't be had: RuntimeError"),
        ("deep", "RecursionError", "recursion"),
        ("leave", "SystemExit", "3"),
        ("missing", "KeyError", "missing"),
    ],
)
def test_whatever_is_raised_is_a_failure_of_that_call(
    call: Caller, tools: Any, what: str, type_name: str, text: str
) -> None:
    found = tools.failure(call(what))
    assert found["type"] == type_name
    assert text in found["text"]
    assert found["traceback"]
    assert tools.value(call("echo", 1)) == 1


def test_a_long_odd_text_is_cut_and_made_printable(call: Caller, tools: Any) -> None:
    found = tools.failure(call("odd"))
    assert found["text"].startswith("\\ud800xxx")
    assert "characters left out" in found["text"]
    assert len(found["text"]) < 20_000
    assert len(found["traceback"]) < 80_000
    assert "ValueError: \\ud800xxx" in found["traceback"]


def test_a_result_that_cannot_travel_names_the_path_to_it(call: Caller, tools: Any) -> None:
    code, data = call("unsendable")
    found = tools.failure((code, data))
    assert code == VALUE_REFUSED
    assert found["kind"] == "value"
    assert found["text"].startswith("result['model'][0] is of type object")


def test_arguments_that_cannot_be_read_are_a_failure_of_that_call(call: Caller, tools: Any) -> None:
    for data in (b"", b"\x77", b"\x02\xc1", codec.pack_call((codec.Ref("ab" * 32, 4),), {})[0]):
        code, found = call(data=data)
        assert code == VALUE_REFUSED
        assert "arguments could not be read" in tools.failure((code, found))["text"]


def test_what_a_call_prints_is_in_the_spool_before_its_result(call: Caller) -> None:
    call("say", "hellö")
    assert call.text() == "hellö\n".encode()
    assert call.text(Kind.CALL_STDERR) == "e:hellö".encode()


@pytest.mark.parametrize("what", ["say_by_thread", "say_by_child"])
def test_threads_and_forked_children_print_as_the_call_that_made_them(call: Caller, what: str) -> None:
    call(what, "elsewhere")
    assert call.text() == b"elsewhere\n"


def test_what_goes_to_the_descriptors_is_the_calls_too(call: Caller) -> None:
    call("say_by_descriptor", "raw")
    assert call.text() == b"raw"
    assert call.text(Kind.CALL_STDERR) == b"child"


@pytest.mark.parametrize("what", ["close_streams", "redirect"])
def test_streams_that_a_call_took_away_are_there_for_the_next(call: Caller, what: str) -> None:
    call(what)
    call("say", "again")
    assert call.text() == b"again\n"
    assert call.text(Kind.CALL_STDERR) == b"e:again"


def test_each_call_begins_in_the_same_folder_and_can_be_interrupted(call: Caller, tools: Any) -> None:
    home = tools.value(call("where"))
    call("go_away")
    assert tools.value(call("where")) == home == os.path.realpath(call.runner.folder)


def test_items_of_a_generator_are_records_behind_the_text_before_them(call: Caller, tools: Any) -> None:
    assert tools.value(call("count", 3, stream=True)) is None
    records = [(kind, number, data) for _, at, kind, number, data in call.runner.written() if at == call.index]
    assert [number for kind, number, _ in records if kind == Kind.CALL_ITEM] == [0, 1, 2]
    assert [codec.unpack(data) for kind, _, data in records if kind == Kind.CALL_ITEM] == [0, 1, 4]
    runs = [
        "".join(data.decode() for _, _, data in run) if kind == Kind.CALL_STDOUT else "item"
        for kind, run in groupby(records, key=itemgetter(0))
    ]
    assert runs == ["before 0\n", "item", "before 1\n", "item", "before 2\n", "item"]


def test_a_generator_that_is_not_streamed_is_the_list_of_its_items(call: Caller, tools: Any) -> None:
    assert tools.value(call("count", 3)) == [0, 1, 4]


def test_coroutines_run_to_their_end(call: Caller, tools: Any) -> None:
    assert tools.value(call("later", 1)) == 2
    assert tools.value(call("counted", 3)) == [0, 1, 2]
    assert tools.value(call("counted", 3, stream=True)) is None
    call("leaves_a_task")
    assert tools.value(call("keep", 1))[-2:] == ["cancelled", 1]


def test_a_forked_child_that_returns_is_not_a_second_runner(call: Caller, tools: Any) -> None:
    assert tools.value(call("returns_twice")) == "parent"
    assert tools.value(call("echo", "one only")) == "one only"


def test_children_that_multiprocessing_spawns_are_no_runners(call: Caller, tools: Any) -> None:
    assert tools.value(call("spawned")) == 0
    assert call.text() == b"from a child\n"


def test_an_alarm_that_a_call_leaves_behind_hits_no_other(call: Caller, tools: Any) -> None:
    call("alarm")
    assert tools.value(call("echo", 5)) == 5
    assert call.runner.process.poll() is None


def test_large_parts_of_results_lie_in_files(call: Caller) -> None:
    done = call.raw("array", 100_000)
    (place,) = done.blobs
    data = Path(place.path).read_bytes()
    assert (place.size, place.digest) == (800_000, hashlib.sha256(data).hexdigest())
    value = codec.unpack(done.data[0], blob=lambda digest, size: bytearray(data))
    assert value["small"] == 1
    assert numpy.array_equal(value["big"], numpy.arange(100_000))
    done = call.raw("bytes_of", 1_000_000)
    assert len(done.data[0]) < 200
    assert done.blobs[0].size >= 1_000_000


def test_large_arguments_are_maps_of_their_files(call: Caller, tools: Any, tmp_path: Path) -> None:
    blobs: list[wire.BlobPlace] = []

    def put(data: memoryview) -> str:
        path = tmp_path / str(len(blobs))
        path.write_bytes(b"before" + data)  # within a larger file
        blobs.append(wire.BlobPlace(hashlib.sha256(data).hexdigest(), str(path), 6, data.nbytes))
        return blobs[-1].digest

    array = numpy.arange(100_000.0)
    packed, digests = codec.pack_call(("total", array), {}, blob=put)
    assert digests == (blobs[0].digest,)
    assert tools.value(call(data=packed, blobs=blobs)) == array.sum()
    changing, _ = codec.pack_call(("change", array), {}, blob=put)
    assert tools.value(call(data=changing, blobs=blobs)) == 7
    assert tools.value(call(data=packed, blobs=blobs)) == array.sum()  # the file is as it was
    os.truncate(blobs[0].path, 50)
    assert "cut short" in tools.failure(call(data=packed, blobs=blobs[:1]))["text"]


def test_a_shared_value_is_made_once_and_cannot_be_changed(call: Caller, tools: Any, tmp_path: Path) -> None:
    data = codec.pack(numpy.arange(50_000))
    (tmp_path / "shared").write_bytes(data)
    place = wire.BlobPlace(hashlib.sha256(data).hexdigest(), str(tmp_path / "shared"), 0, len(data))
    ref = codec.Ref(place.digest, place.size)
    first = tools.value(call("identity", ref, blobs=[place]))
    assert first == tools.value(call("identity", ref, blobs=[place]))
    assert first[1] is False
    assert tools.failure(call("change", ref, blobs=[place]))["type"] == "ValueError"
