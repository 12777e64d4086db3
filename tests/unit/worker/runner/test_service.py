"""A runner between calls: who holds what, what is sent again, when it ends."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulayer.protocol.calls import OK, RAISED, VALUE_REFUSED
from gpulayer.protocol.failpoints import Failpoint
from gpulayer.protocol.records import Kind
from gpulayer_worker.runner import wire

WAITS = """
import os, time

def f(x, path=None):
    if path is not None:
        print("waiting", flush=True)
        open(path + ".here", "w").close()
        while not os.path.exists(path):
            time.sleep(0.005)
    return x
"""

Make = Callable[..., Any]


def held(runner: Any, agent: Any, tools: Any, path: Path, behind: int = 0) -> None:
    """Has call 0 of map 'm.1' run until `path` exists, and `behind` others wait after it."""
    args = [tools.packed(0, str(path)), *(tools.packed(i + 1) for i in range(behind))]
    agent.send(wire.Calls("m.1", 0, args))
    runner.wait_until(Path(f"{path}.here").exists)


def test_results_are_sent_again_until_they_are_accepted(make_runner: Make, tools: Any) -> None:
    runner = make_runner("def f(x): return x\n")
    first = runner.connect()
    ready = first.next(wire.Ready)
    assert ready.about["pid"] == runner.process.pid
    assert ready.about["rss_bytes"] > 1_000_000
    first.send(wire.Calls("m.1", 0, [tools.packed(i) for i in range(70)]), wire.Calls("m.2", 5, [tools.packed("b")]))
    found = first.results("m.1", 70)
    first.results("m.2", 1)
    assert [tools.value(found[i]) for i in range(70)] == list(range(70))
    first.send(wire.Accepted("m.1", 0, 40))
    assert runner.ask(op="hold")["waiting"] == []
    first.close()

    second = runner.connect()
    assert second.next(wire.Ready).about["pid"] == runner.process.pid
    again = second.results("m.2", 1)
    assert tools.value(again[5]) == "b"
    frames = [(done.first, done.first + len(done.codes)) for done in second.frames if type(done) is wire.Done]
    assert set(range(40, 70)) <= {index for first, end in frames for index in range(first, end)}
    assert all(end > 40 for _, end in frames)
    second.send(wire.Accepted("m.1", 32, 38), wire.Accepted("m.2", 5, 1))
    runner.wait_until(lambda: runner.ask(op="hold")["unaccepted"] == [])
    third = runner.connect()
    third.next(wire.Ready)
    third.send(wire.Calls("m.3", 0, [tools.packed(9)]))
    assert third.next(wire.Done).map == "m.3"


def test_hold_tells_everything_while_a_call_runs(make_runner: Make, tools: Any, tmp_path: Path) -> None:
    runner = make_runner(WAITS)
    agent = runner.connect()
    agent.next(wire.Ready)
    held(runner, agent, tools, tmp_path / "go", behind=3)
    agent.send(wire.Calls("m.2", 7, [tools.packed(1)] * 2))
    busy = agent.next(wire.Busy)
    assert (busy.map, busy.index) == ("m.1", 0)
    assert busy.elapsed_us >= 10_000
    hold = runner.ask(op="hold")
    assert hold["waiting"] == [["m.1", 1, 3], ["m.2", 7, 2]]
    assert hold["running"][:2] == ["m.1", 0]
    assert (hold["state"], hold["unaccepted"]) == ("ready", [])
    assert runner.text(0) == b"waiting\n"

    newer = runner.connect()
    newer.next(wire.Ready)
    assert newer.next(wire.Busy).index == 0
    assert agent.socket.recv(1) == b""  # the one before is closed
    (tmp_path / "go").touch()
    assert len(newer.results("m.1", 4)) == 4
    assert len(newer.results("m.2", 2)) == 2


def test_calls_that_have_not_begun_can_be_taken_back(make_runner: Make, tools: Any, tmp_path: Path) -> None:
    runner = make_runner(WAITS)
    agent = runner.connect()
    held(runner, agent, tools, tmp_path / "go", behind=5)
    agent.send(wire.Calls("m.2", 0, [tools.packed(1)] * 3))
    assert runner.ask(op="recall", count=4) == {"recalled": [["m.2", 0, 3], ["m.1", 5, 1]]}
    assert runner.ask(op="recall", count=2) == {"recalled": [["m.1", 3, 2]]}
    (tmp_path / "go").touch()
    assert sorted(agent.results("m.1", 3)) == [0, 1, 2]
    assert runner.ask(op="recall", count=9) == {"recalled": []}
    assert runner.ask(op="hold")["unaccepted"] == [["m.1", 0, 3]]


def test_drop_interrupts_the_map_that_runs_and_no_other(make_runner: Make, tools: Any, tmp_path: Path) -> None:
    runner = make_runner(WAITS)
    agent = runner.connect()
    held(runner, agent, tools, tmp_path / "go", behind=2)
    agent.send(wire.Calls("m.2", 0, [tools.packed("other")]))
    assert runner.ask(op="drop", map="m.9") == {"dropped": [], "interrupting": None}
    assert runner.ask(op="interrupt", map="m.1", index=1) == {"interrupting": None}
    assert runner.ask(op="drop", map="m.1") == {"dropped": [["m.1", 1, 2]], "interrupting": 0}
    result = agent.results("m.1", 1)[0]
    assert tools.failure(result)["type"] == "KeyboardInterrupt"
    assert tools.value(agent.results("m.2", 1)[0]) == "other"


def test_a_signal_interrupts_the_call_that_runs_and_nothing_between_calls(
    make_runner: Make, tools: Any, tmp_path: Path
) -> None:
    runner = make_runner(WAITS)
    agent = runner.connect()
    agent.next(wire.Ready)
    os.kill(runner.process.pid, signal.SIGINT)
    held(runner, agent, tools, tmp_path / "go", behind=1)
    os.kill(runner.process.pid, signal.SIGINT)
    found = agent.results("m.1", 2)
    assert tools.failure(found[0])["type"] == "KeyboardInterrupt"
    assert tools.value(found[1]) == 1


def test_a_request_that_cannot_be_read_is_answered(make_runner: Make) -> None:
    runner = make_runner("def f(): pass\n")
    assert "nonsense" in runner.ask(op="nonsense")["error"]
    assert "KeyError" in runner.ask(op="drop")["error"]
    assert runner.ask(op="hold")["pid"] == runner.process.pid


def test_a_function_that_cannot_be_loaded_fails_each_call(make_runner: Make, tools: Any) -> None:
    runner = make_runner("print('loading')\nraise SystemExit('no licence')\n")
    agent = runner.connect()
    failure = agent.next(wire.LoadFailed).failure
    assert (failure["kind"], failure["type"], failure["text"]) == ("load", "SystemExit", "no licence")
    assert "mine.py" in failure["traceback"]
    agent.send(wire.Calls("m.1", 0, [tools.packed()] * 2))
    found = agent.results("m.1", 2)
    assert found[0][0] == RAISED
    assert tools.failure(found[0]) == tools.failure(found[1]) == failure
    assert runner.text(0) == b"loading\n"
    assert runner.ask(op="hold")["state"] == "failed"


def test_a_stateful_class_keeps_its_object(make_runner: Make, tools: Any) -> None:
    source = """
class F:
    def __init__(self, start, step=1):
        self.at, self.step = start, step
    def add(self, n):
        self.at += n * self.step
        return self.at
    async def aadd(self, n):
        return self.add(n)
"""
    runner = make_runner(source, stateful=True, init=tools.base64_of(tools.packed(10, step=2)))
    agent = runner.connect()
    agent.next(wire.Ready)
    agent.send(wire.Calls("m.1", 0, [tools.packed(1), tools.packed(2)], "add"))
    assert [tools.value(each) for each in agent.results("m.1", 2).values()] == [12, 16]
    agent.send(wire.Calls("m.2", 0, [tools.packed(1)], "aadd"), wire.Calls("m.3", 0, [tools.packed(1)], "missing"))
    assert tools.value(agent.results("m.2", 1)[0]) == 18
    code, data = agent.results("m.3", 1)[0]
    assert code == VALUE_REFUSED
    assert "missing" in tools.failure((code, data))["text"]


def test_an_object_that_cannot_be_made_is_a_failed_load(make_runner: Make, tools: Any) -> None:
    source = "class F:\n    def __init__(self): raise OSError('no model')\n"
    runner = make_runner(source, stateful=True, init=tools.base64_of(tools.packed()))
    assert runner.connect().next(wire.LoadFailed).failure["text"] == "no model"


def test_one_call_only_where_each_has_a_process_of_its_own(make_runner: Make, tools: Any) -> None:
    runner = make_runner("def f(x): return x\n", isolate=True)
    agent = runner.connect()
    agent.send(wire.Calls("m.1", 0, [tools.packed(1), tools.packed(2)]))
    assert agent.next(wire.Replace).why["reason"] == "isolate"
    assert agent.results("m.1", 1) == {0: (OK, agent_value(tools, 1))}
    hold = runner.ask(op="hold")
    assert (hold["state"], hold["waiting"]) == ("replace", [["m.1", 1, 1]])
    agent.send(wire.Accepted("m.1", 0, 1), wire.End())
    assert runner.process.wait(60) == 0


def agent_value(tools: Any, value: Any) -> bytes:
    return tools.pack(value)


def test_a_runner_with_more_memory_than_its_limit_stops(make_runner: Make, tools: Any) -> None:
    source = "kept = []\ndef f(n):\n    kept.append(bytearray(b'x') * n)\n    return n\n"
    runner = make_runner(source, memory_limit_bytes=120 << 20)
    agent = runner.connect()
    ready = agent.next(wire.Ready)
    assert ready.about["rss_bytes"] < 120 << 20
    agent.send(wire.Calls("m.1", 0, [tools.packed(1000), tools.packed(200 << 20), tools.packed(1)]))
    assert len(agent.results("m.1", 2)) == 2
    why = agent.next(wire.Replace).why
    assert why["reason"] == "memory"
    assert why["rss_bytes"] > 200 << 20
    (told,) = runner.written()
    assert told[:3] == ("m.1", 1, Kind.CALL_STDERR)
    assert re.fullmatch(
        rb"gpulayer: its runner has 2\d\d MB, more than memory_limit=126MB: a fresh one takes its place\n", told[4]
    )
    assert runner.ask(op="hold")["waiting"] == [["m.1", 2, 1]]
    later = runner.connect()
    assert later.next(wire.Replace).why["reason"] == "memory"


def test_end_comes_after_what_waits_and_runs_what_is_to_run_at_exit(make_runner: Make, tools: Any) -> None:
    source = """
import atexit, threading, time
atexit.register(print, "bye")
def f(x):
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return x
"""
    runner = make_runner(source)
    agent = runner.connect()
    agent.send(wire.Calls("m.1", 0, [tools.packed(1), tools.packed(2)]), wire.End())
    assert len(agent.results("m.1", 2)) == 2
    assert runner.process.wait(60) == 0
    assert runner.text(1) == b"bye\n"


def test_a_killed_runner_has_told_all_but_the_call_at_hand(make_runner: Make, tools: Any) -> None:
    runner = make_runner("def f(x):\n    print('said', x)\n    return x\n")
    agent = runner.connect()
    agent.next(wire.Ready)
    agent.send(wire.Calls("m.1", 0, [tools.packed(0)]))
    assert len(agent.results("m.1", 1)) == 1
    with Failpoint(runner.folder, "runner.result") as point:
        agent.send(wire.Calls("m.1", 1, [tools.packed(1), tools.packed(2)]))
        assert point.await_hit() == runner.process.pid
        assert runner.text(1) == b"said 1\n"
        assert runner.ask(op="hold")["running"][:2] == ["m.1", 1]
        assert runner.ask(op="hold")["waiting"] == [["m.1", 2, 1]]
        runner.process.kill()
        runner.process.wait()
    assert [frame for frame in agent.frames if type(frame) is wire.Done] == []


def test_a_crash_of_the_interpreter_leaves_its_reason_in_the_file_of_stderr(make_runner: Make, tools: Any) -> None:
    runner = make_runner("import faulthandler\ndef f():\n    faulthandler._sigsegv()\n")
    runner.connect().send(wire.Calls("m.1", 0, [tools.packed()]))
    assert runner.process.wait(60) == -signal.SIGSEGV
    assert "Segmentation fault" in runner.errors()
    assert "mine.py" in runner.errors()


def test_a_call_that_closes_what_is_not_its_own_ends_the_runner(make_runner: Make, tools: Any) -> None:
    runner = make_runner("import os\ndef f():\n    os.closerange(3, 256)\n")
    agent = runner.connect()
    agent.next(wire.Ready)
    agent.send(wire.Calls("m.1", 0, [tools.packed()]))
    assert runner.process.wait(60) == 70
    assert "closed file descriptors" in runner.errors()


def test_text_comes_while_a_call_runs(make_runner: Make, tools: Any, tmp_path: Path) -> None:
    source = f"""
import os, sys, time
def f():
    sys.stdout.write("no newline")
    os.write(2, b"raw")
    while not os.path.exists({str(tmp_path / "go")!r}):
        time.sleep(0.005)
"""
    runner = make_runner(source)
    agent = runner.connect()
    agent.send(wire.Calls("m.1", 4, [tools.packed()]))
    runner.wait_until(lambda: runner.text(4) == b"no newline")
    runner.wait_until(lambda: runner.text(4, Kind.CALL_STDERR) == b"raw")
    (tmp_path / "go").touch()
    agent.results("m.1", 1)
