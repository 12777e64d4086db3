"""What a cell shows is in its spool: all of it, once, in order, in bounded pieces."""

from __future__ import annotations

from typing import Any

import pytest

PIECE_BYTES = 256 * 1024


def assert_bounded(output: Any) -> None:
    assert max(len(text.encode()) for _, text in output.pieces()) <= PIECE_BYTES


def test_a_cell_is_busy_then_its_output_then_its_reply_then_idle(kernel: Any) -> None:
    output = kernel.run("print('hello')\n1 + 1")
    assert output.order == ["status", "execute_input", "stream", "execute_result", "REPLY", "status"]
    assert [content["execution_state"] for kind, content, _ in output.messages if kind == "status"] == ["busy", "idle"]
    assert output.text() == "hello\n"
    assert output.messages[-2][1]["data"]["text/plain"] == "2"
    assert {parent for _, _, parent in output.messages} == {output.attempt}


def test_the_order_between_streams_displays_and_the_result_is_kept(kernel: Any) -> None:
    output = kernel.run("""
import sys
from IPython.display import display, clear_output
for i in range(3):
    print("out", i)
    print("err", i, file=sys.stderr)
print("before", end="")
display({"text/plain": "shown"}, raw=True)
sys.stderr.write("no newline")
clear_output(wait=True)
print("after", end="")
"result"
""")
    assert output.pieces() == [
        *[(name, f"{name[3:]} {i}\n") for i in range(3) for name in ("stdout", "stderr")],
        ("stdout", "before"),
        ("stderr", "no newline"),
        ("stdout", "after"),
    ]
    assert output.order[2:-2] == [
        *["stream"] * 7,
        "display_data",
        "stream",
        "clear_output",
        "stream",
        "execute_result",
    ]


def test_text_without_a_newline_is_written_while_the_cell_runs(kernel: Any) -> None:
    with kernel.failpoint("kernel.first-byte") as point:
        output = kernel.send("print('waiting', end=''); import threading; threading.Event().wait(0.5); print('.')")
        point.await_hit()
        assert output.read().text() == "waiting"
        point.release()
        kernel.wait(output, lambda: output.ended)
    assert output.text() == "waiting.\n"


def test_twenty_thousand_lines_are_all_there(kernel: Any) -> None:
    output = kernel.run("for i in range(20_000): print(i)")
    assert output.text() == "".join(f"{i}\n" for i in range(20_000))
    assert_bounded(output)


def test_a_line_of_ten_megabytes_comes_in_pieces(kernel: Any) -> None:
    output = kernel.run("print('0123456789' * 1_000_000)")
    assert output.text() == "0123456789" * 1_000_000 + "\n"
    assert_bounded(output)


def test_a_flood_of_thirty_megabytes_comes_in_pieces(kernel: Any) -> None:
    output = kernel.run("for i in range(3000): print(f'{i:05d}' * 2000)")
    assert output.text() == "".join(f"{i:05d}" * 2000 + "\n" for i in range(3000))
    assert_bounded(output)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("'\\N{GRINNING FACE}é' * 200_000", "\N{GRINNING FACE}é" * 200_000),
        ("'\\ud83d\\ude00 \\udcff \\ud800.'", "\N{GRINNING FACE} \ufffd \ufffd."),
        ("'\\x00\\x1b[31m\\r'", "\x00\x1b[31m\r"),
    ],
)
def test_any_text_is_written_as_utf8(kernel: Any, expression: str, text: str) -> None:
    output = kernel.run(f"print({expression}, end='')")
    assert output.text() == text
    assert output.reply["status"] == "ok"
    assert_bounded(output)


def test_undecodable_file_names_in_a_display_are_valid_json(kernel: Any) -> None:
    output = kernel.run("display({'text/plain': 'a \\udcff é'}, raw=True)")
    [content] = [content for kind, content, _ in output.messages if kind == "display_data"]
    assert content["data"] == {"text/plain": "a \ufffd é"}


def test_threads_print_whole_lines_and_lose_none(kernel: Any) -> None:
    output = kernel.run("""
import threading
def work(name):
    for i in range(500):
        print(f"{name}-{i}\\n", end="")
threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""")
    lines = output.text().splitlines()
    assert sorted(lines) == sorted(f"{name}-{i}" for name in range(8) for i in range(500))
    for name in range(8):
        assert [line for line in lines if line.startswith(f"{name}-")] == [f"{name}-{i}" for i in range(500)]


def words(text: str) -> list[str]:
    """Each in its turn of the alphabet. A child's line has its end by a write of its own: a parent's may come first."""
    return sorted(text.replace("child", "child ").split())


def test_a_forked_child_prints_once(kernel: Any) -> None:
    output = kernel.run("""
import os
print("before", end=" ")
pid = os.fork()
if not pid:
    print("child")
    os._exit(0)
os.waitpid(pid, 0)
print("parent")
""")
    assert words(output.text()) == ["before", "child", "parent"]


def test_a_child_that_comes_to_the_end_of_the_cell_ends_there(kernel: Any) -> None:
    output = kernel.run("""
import os
pid = os.fork()
if pid:
    status = os.waitpid(pid, 0)[1]
print("child" if not pid else "parent")
""")
    assert words(output.text()) == ["child", "parent"]
    assert kernel.run("status").messages[-2][1]["data"]["text/plain"] == "0"


def test_processes_of_multiprocessing_print_once(kernel: Any) -> None:
    output = kernel.run("""
import multiprocessing, warnings
warnings.simplefilter("ignore")
def work(number):
    print(f"worker {number}")
    return number
with multiprocessing.get_context("fork").Pool(2) as pool:
    done = pool.map(work, range(6))
    pool.close()
    pool.join()
print(done)
""")
    assert [output.text().count(f"worker {number}") for number in range(6)] == [1] * 6
    assert output.text().count("[0, 1, 2, 3, 4, 5]") == 1


def test_what_a_forked_child_prints_keeps_its_order(kernel: Any) -> None:
    output = kernel.run("""
import os, sys
pid = os.fork()
if not pid:
    for number in range(2000):
        print("line", number, file=sys.stderr)
    os._exit(0)
os.waitpid(pid, 0)
""")
    assert output.text("stderr") == "".join(f"line {number}\n" for number in range(2000))


def test_a_daemon_that_closed_its_descriptors_can_print(kernel: Any) -> None:
    output = kernel.run("""
import os
pid = os.fork()
if not pid:
    os.closerange(0, 1024)
    print("closed")
    os._exit(0)
status = os.waitpid(pid, 0)[1]
status
""")
    assert output.messages[-2][1]["data"]["text/plain"] == "0"


def test_programs_write_to_the_cell(kernel: Any) -> None:
    output = kernel.run("""
!echo from the shell
import os, subprocess, sys
os.system("echo from system; echo to stderr >&2")
print("from print")
done = subprocess.run([sys.executable, "-c", "print('é' * 100_000)"])
""")
    lines = output.text().replace("\r", "").splitlines()
    assert sorted(lines, key=len) == ["from print", "from system", "from the shell", "é" * 100_000]
    assert output.text("stderr") == "to stderr\n"
    assert "\ufffd" not in output.text()


def test_top_level_await_prints(kernel: Any) -> None:
    output = kernel.run("import asyncio\nfor i in range(3):\n    print(i)\n    await asyncio.sleep(0.001)\n'end'")
    assert output.text() == "0\n1\n2\n"
    assert output.order[-3:] == ["execute_result", "REPLY", "status"]


def test_raw_buffers_travel_with_a_message(kernel: Any) -> None:
    output = kernel.run("""
import comm
c = comm.create_comm(target_name="t", data={"a": 1}, buffers=[memoryview(b"raw"), bytearray(b"\\x00\\xff")])
""")
    assert "comm_open" in output.order
    [content] = [content for kind, content, _ in output.messages if kind == "comm_open"]
    assert content["data"] == {"a": 1}


def test_a_message_with_more_parts_than_a_record_takes_is_named(kernel: Any) -> None:
    output = kernel.run("""
import comm
c = comm.create_comm(target_name="t", buffers=[b"x"] * 300)
print("goes on")
""")
    [mark] = [value for kind, value in output.others if "mark" in value]
    assert mark == {"mark": "dropped", "why": "a message has 304 parts; 255 are allowed", "records": 1}
    assert output.text() == "goes on\n"


def test_a_stream_says_what_it_is(kernel: Any) -> None:
    output = kernel.run("""
import sys
for wrong in (lambda: sys.stdout.write(b"bytes"), lambda: sys.stdout.read()):
    try:
        wrong()
    except Exception as error:
        print(type(error).__name__)
print(sys.stdout.writable(), sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.name)
sys.stdout.writelines(["a", "b\\n"])
""")
    lines = output.text().splitlines()
    assert lines == ["TypeError", "UnsupportedOperation", "True False UTF-8 stdout", "ab"]
