"""Interrupts, deaths and failpoints: whatever happens, a spool holds whole records."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import Any

import pytest

COUNTING = """
n = 0
try:
    while True:
        print(n)
        n += 1
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_in_the_middle_of_output_leaves_a_clean_stream(kernel: Any) -> None:
    for _ in range(3):
        output = kernel.send(COUNTING)
        kernel.wait(output, lambda output=output: len(output.pieces()) > 5)
        kernel.interrupt()
        kernel.wait(output, lambda output=output: output.ended)
        lines = output.text().split("\n")
        numbers = [line for line in lines if line.isdigit()]
        assert numbers == [str(n) for n in range(len(numbers))]  # nothing lost, nothing doubled
        assert "interrupted" in lines[-2]
        assert output.reply["status"] == "ok"


def test_a_cell_that_does_not_catch_it_ends_with_the_interrupt(kernel: Any) -> None:
    # what is seen is printed by line 2: a line before it might still be at it when the interrupt comes
    output = kernel.send("first = 'first'\nwhile True: print(first, flush=True)")
    kernel.wait(output, lambda: output.text().startswith("first\n"))
    kernel.interrupt()
    kernel.wait(output, lambda: output.ended)
    name, traceback = output.error()
    assert name == output.reply["ename"] == "KeyboardInterrupt"
    assert "line 2" in traceback
    assert kernel.run("1").reply["status"] == "ok"


def test_an_interrupt_ends_an_await(kernel: Any) -> None:
    output = kernel.send("import asyncio\nprint('first')\nawait asyncio.sleep(3600)")
    kernel.wait(output, lambda: output.text() == "first\n")
    kernel.interrupt()
    kernel.wait(output, lambda: output.ended)
    assert output.reply["status"] == "error"
    assert kernel.run("1").reply["status"] == "ok"


@pytest.mark.parametrize("made", ["gc.callbacks.append(busy)", "Busy.__del__ = busy"], ids=["collector", "del"])
def test_an_interrupt_that_nobody_could_catch_comes_again(kernel: Any, made: str) -> None:
    output = kernel.send(f"""
import gc, time
def busy(*_):
    global inside
    inside += 1
    if inside < 100:
        time.sleep(0.002)  # so long nearly all of the time is spent where an interrupt is dropped
inside = 0
class Busy: pass
{made}
print('first')
try:
    while True:
        Busy()
        if inside < 100:
            gc.collect(0)
finally:
    gc.callbacks[:] = [each for each in gc.callbacks if each is not busy]
    del Busy
""")
    kernel.wait(output, lambda: output.text() == "first\n")
    kernel.interrupt()
    kernel.wait(output, lambda: output.ended)
    assert output.error()[0] == output.reply["ename"] == "KeyboardInterrupt"
    assert output.text() == "first\n"
    assert kernel.run("1").reply["status"] == "ok"


def test_an_interrupt_between_busy_and_the_cell_is_not_lost(kernel: Any) -> None:
    with kernel.failpoint("kernel.started") as point:
        output = kernel.send("while True: pass")
        point.await_hit()
        kernel.interrupt()
        point.release()
        kernel.wait(output, lambda: output.ended)
    assert output.error()[0] == output.reply["ename"] == "KeyboardInterrupt"


def test_an_interrupt_while_a_record_is_written_comes_after_it(kernel: Any) -> None:
    with kernel.failpoint("kernel.mid-output") as point:
        output = kernel.send("for i in range(10_000): print(i, flush=True)")
        point.await_hit()
        kernel.interrupt()
        point.release()
        kernel.wait(output, lambda: output.ended)
    assert output.error()[0] == "KeyboardInterrupt"
    assert output.text().startswith("0\n1\n2\n")


@pytest.mark.parametrize("point", ["kernel.last-byte", "kernel.idle-written"])
def test_an_interrupt_at_the_end_of_a_cell_ends_nothing_else(kernel: Any, point: str) -> None:
    with kernel.failpoint(point) as failpoint:
        output = kernel.send("print('done')")
        failpoint.await_hit()
        kernel.interrupt()
        failpoint.release()
        kernel.wait(output, lambda: output.ended)
    assert output.reply["status"] == "ok"
    assert kernel.run("1").reply["status"] == "ok"


def test_other_signal_handlers_may_print_and_raise_in_the_middle(kernel: Any) -> None:
    output = kernel.run("""
import signal, sys
class Rang(Exception): pass
rang = 0
def handler(signum, frame):
    global rang
    rang += 1
    sys.stdout.write(f"<{rang}>")
    sys.stdout.flush()
    raise Rang
signal.signal(signal.SIGALRM, handler)
for i in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + i * 0.00001)
        while True:
            sys.stdout.write("y" * 3000 + "\\n")
    except Rang:
        pass
""")
    assert output.reply["status"] == "ok"
    rang = re.findall("<([0-9]+)>", output.text())
    assert rang == [str(number) for number in range(1, 201)]
    assert set(re.sub("<[0-9]+>", "", output.text())) == {"y", "\n"}


def test_the_places_where_a_test_can_stop_a_kernel(kernel: Any) -> None:
    names = ["started", "first-byte", "mid-output", "last-byte", "idle-written"]
    points = [kernel.failpoint(f"kernel.{name}") for name in names]
    for point in points:
        point.arm()
    output = kernel.send("for i in range(6): print(i, flush=True)")
    seen: list[list[str]] = []
    for point in points:
        assert point.await_hit() == kernel.process.pid
        seen.append(list(output.read().order))
        point.release()
    kernel.wait(output, lambda: output.ended)
    start = ["status", "execute_input"]
    assert seen == [
        start[:1],
        [*start, "stream"],
        [*start, *["stream"] * 5],
        [*start, *["stream"] * 6, "REPLY"],
        [*start, *["stream"] * 6, "REPLY", "status"],
    ]


def test_a_kernel_killed_in_the_middle_of_output_leaves_whole_records(fresh: Any) -> None:
    output = fresh.start().send("i = 0\nwhile True:\n    print(f'{i:05d}' * 1000)\n    i += 1")
    fresh.wait(output, lambda: len(output.pieces()) > 20)
    fresh.process.send_signal(signal.SIGKILL)
    assert fresh.end() == -signal.SIGKILL
    text = output.read().text()
    assert not output.ended
    assert text == "".join(f"{i:05d}" * 1000 + "\n" for i in range(text.count("\n") + 1))[: len(text)]


def test_a_cell_that_ends_the_process_leaves_what_it_had_flushed(fresh: Any) -> None:
    output = fresh.start().send("import os\nprint('last words', flush=True)\nos._exit(3)")
    assert fresh.end() == 3
    assert output.read().text() == "last words\n"
    assert output.order == ["status", "execute_input", "stream"]


def test_a_crash_of_the_interpreter_is_explained_in_the_log(fresh: Any) -> None:
    fresh.start().send("import ctypes\ndef crash():\n    ctypes.string_at(0)\ncrash()")
    assert fresh.end() == -signal.SIGSEGV
    assert "Segmentation fault" in fresh.log
    assert "in crash" in fresh.log


def test_a_cell_that_leaves_the_kernel_is_ended_first(fresh: Any) -> None:
    output = fresh.start().send("print('bye')\nexit()")
    assert fresh.end() == 0
    assert output.read().ended
    assert output.text() == "bye\n"
    assert output.reply["status"] == "ok"


def test_a_kernel_outlives_whoever_started_it(fresh: Any) -> None:
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], start_new_session=True).pid)"
    with (fresh.folder / "log").open("wb") as log:
        starter = subprocess.Popen(
            [sys.executable, "-c", code, *fresh.command],
            cwd=fresh.cwd,
            env=fresh.env,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert starter.stdout is not None
    with starter, starter.stdout:
        assert int(starter.stdout.readline()) > 0
        starter.stdout.close()
    fresh.run("import os\nprint(os.getpid())")
    with_parent = fresh.send("print('lives')\nos._exit(0)")
    fresh.wait(with_parent, lambda: with_parent.text() == "lives\n")
    assert starter.returncode == 0
