"""Puts a runner together, and its main loop."""

from __future__ import annotations

import atexit
import base64
import errno
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from . import blobs, failures, wire
from .control import Control
from .executing import RAISED, Executor
from .inbox import Inbox
from .interrupts import Interrupts
from .link import Link, give_up
from .memory import Memory
from .outbox import Outbox
from .output import STDERR, Files, Sink, Streams, Timer

_BUSY_NS = int(wire.FLUSH_S * 1e9)
_SHORT_NS = 1000  # in less than this no call can have written to a file or gone to another folder
_LONG_NS = 2_000_000  # results of such calls do not wait for others


class Runner:
    """One process's runner. All of it belongs to the main thread, but for what the two helper threads are given."""

    def __init__(self, config: dict[str, Any], protocol: Any) -> None:
        """`config` as `main` says, `protocol` the modules `records`, `spool`, `failpoints` and `calls`.

        Listens from here on. Raises OSError.
        """
        self._config = config
        self._protocol = protocol
        self._pid = os.getpid()
        self._home = os.getcwd()
        self._worker = config.get("worker", "")
        self._limit_bytes: int | None = config.get("memory_limit_bytes")
        self._isolated = bool(config.get("isolate"))
        self._reach = protocol.failpoints.reach
        self._state = "loading"
        self._why: dict[str, Any] = {}  # it runs nothing any more
        self._told: tuple[str, int, int] | None = None  # the call that the agent knows to be busy
        self._calls = 0
        self._seen: Any = None  # by the timer: how many calls there were, and which one ran
        self._memory = Memory()
        self._inbox = Inbox()
        self._interrupts = Interrupts(self._inbox)
        self._timer = Timer(self._tick, lambda: self._inbox.running is not None)
        self._sink = Sink(self._open_spool, self._timer.wake)
        self._streams = Streams(self._sink)
        self._files = Files(self._sink, config.get("stdout", ""), config.get("stderr", ""))
        self._results = blobs.Results(config.get("results", ""), config.get("reserve_bytes", 0))
        self._executor = Executor(protocol.calls, self._worker, self._results, self._sink.item)
        self._link = Link(config["data_socket"], self._take)
        self._outbox = Outbox(self._link.send, self._memory.recent_bytes)
        self._control = Control(config["control_socket"], self._answer)
        self._control.watch(self._link.listener, lambda: self._link.accept(self._greeting))
        os.register_at_fork(after_in_child=self._in_child)

    def run(self, load: Callable[[dict[str, Any], dict[str, Any], str | None], Any]) -> None:
        """Loads the function by `load` and runs calls until the end; does not return."""
        self._control.start()
        self._timer.start()
        self._reach("runner.started")
        hello: bytes | None = wire.encode(self._loaded(load))
        while True:
            try:
                if hello is not None:
                    self._link.greet_all(hello, self._greeting)
                    hello = None
                self._work()
                break
            except BaseException as error:  # noqa: BLE001 - a signal handler that a call has left behind has raised
                self._recover(error)
        self._link.drop()
        self._leave(0)

    # ------------------------------------------------------------------------------------------------- the function

    def _loaded(self, load: Callable[[dict[str, Any], dict[str, Any], str | None], Any]) -> Any:
        config, executor = self._config, self._executor
        began = time.monotonic()
        try:
            spec = _whole(config["function"])
            data = base64.b64decode(spec.pop("data"))
            values = self._protocol.calls.unpack(data) if data else {}
            executor.target = load(spec, values, config.get("bundle") or None)
            if config.get("stateful"):
                places = {row[0]: wire.BlobPlace(*row) for row in config.get("init_blobs", ())}
                executor.make(base64.b64decode(config["init"]), places)
        except BaseException as error:  # noqa: BLE001 - an import may raise SystemExit too
            executor.failure = failures.of_exception(error, self._worker, "load")
            self._state = "failed"
            return wire.LoadFailed(executor.failure)
        finally:
            self._streams.restore()
            self._interrupts.restore()
        self._home = os.getcwd()
        self._state = "ready"
        about = {"pid": self._pid, "rss_bytes": self._memory.bytes(), "python": sys.version.split()[0]}
        return wire.Ready({**about, "load_s": round(time.monotonic() - began, 4)})

    def _open_spool(self) -> Any:
        config = self._config
        return self._protocol.spool.SpoolWriter(config["spool"], reserve_bytes=config.get("reserve_bytes", 0))

    # ----------------------------------------------------------------------------------------------------- the loop

    def _work(self) -> None:
        """Runs what comes, until it is to end."""
        inbox, link, outbox = self._inbox, self._link, self._outbox
        while True:
            batch = inbox.next() if self._state != "replace" else inbox.rest()
            if batch is not None:
                self._one(batch, inbox.index)
                continue
            outbox.flush()
            if link.read():
                continue
            if inbox.ended:
                return
            link.wait()
            link.read()

    def _one(self, batch: Any, index: int) -> None:
        executor, sink, outbox = self._executor, self._sink, self._outbox
        sink.begin(batch.map, index)
        if self._timer.asleep:
            self._timer.wake()
        code, data = executor.run(batch, self._interrupts, self._inbox)
        if self._calls < 0:
            self._end_child(code, data)
        self._calls += 1
        spent_ns = executor.spent_ns
        outgrown = self._limit_bytes is not None and self._has_outgrown(self._limit_bytes, spent_ns)
        if spent_ns >= _SHORT_NS or sink.pending:
            self._settle(spent_ns)
        self._streams.restore()
        self._interrupts.restore()
        self._reach("runner.result")
        places = self._results.taken() if self._results.places else None
        full = outbox.add(batch.map, index, code, data, spent_ns, places, executor.ended_ns)
        if full or spent_ns >= _LONG_NS:
            outbox.flush()
        if outgrown or self._isolated:
            self._stop_for("memory" if outgrown else "isolate")

    def _settle(self, spent_ns: int) -> None:
        """After a call that may have done more than compute: what it wrote, and where it went to."""
        try:
            if spent_ns >= 20 * _SHORT_NS:
                self._files.flush_c()
            self._files.take()
            if self._sink.pending:
                self._sink.flush()
        except OSError as error:
            if error.errno is None:  # TimeoutError, most likely, of a signal handler of the user's
                raise
            if error.errno == errno.EBADF:
                give_up()
            os.write(2, f"gpulayer runner: output could not be written: {error}\n".encode(errors="replace"))
        self._go_home()

    def _go_home(self) -> None:
        try:
            if os.getcwd() == self._home:
                return
        except OSError:
            pass  # the folder that it went to is gone
        try:
            os.chdir(self._home)
        except OSError as error:
            os.write(2, f"gpulayer runner: {error}\n".encode(errors="replace"))

    def _has_outgrown(self, limit_bytes: int, spent_ns: int) -> bool:
        """Whether it has more memory than it may. Then the call that is over says so, where what it wrote appears."""
        memory = self._memory  # it takes time to fill some
        has_bytes = memory.bytes() if spent_ns >= _LONG_NS else memory.recent_bytes()
        if has_bytes <= limit_bytes:
            return False
        why = f"its runner has {has_bytes / 1e6:,.0f} MB, more than memory_limit={limit_bytes / 1e6:,.0f}MB"
        then = "it ends, and its object is gone" if self._config.get("stateful") else "a fresh one takes its place"
        self._sink.write(STDERR, f"gpulayer: {why}: {then}\n".encode())
        return True

    def _stop_for(self, reason: str) -> None:
        self._why = {"reason": reason, "rss_bytes": self._memory.bytes(), "limit_bytes": self._limit_bytes}
        self._state = "replace"
        self._outbox.flush()
        self._link.send(wire.encode(wire.Replace(self._why)))

    def _recover(self, error: BaseException) -> None:
        """After an exception between calls: the one that ran has failed with it, and the connection begins anew."""
        if isinstance(error, OSError) and error.errno == errno.EBADF:
            give_up()
        self._link.drop()
        running = self._inbox.runs()
        if running is not None:
            failure = failures.of_exception(error, self._worker)
            self._outbox.add(running[0], running[1], RAISED, failures.pack(failure), 0, None, time.monotonic_ns())

    def _leave(self, code: int) -> None:
        """Ends the process; threads that calls have left behind do not hold it up."""
        try:
            atexit._run_exitfuncs()
            self._files.flush_c()
            self._files.take()
            self._sink.flush()
        finally:
            os._exit(code)

    # ------------------------------------------------------------------------------------------------ other threads

    def _take(self, frame: Any) -> None:
        if type(frame) is wire.Calls:
            self._inbox.put(frame)
        elif type(frame) is wire.Accepted:
            self._outbox.accept(*frame)
        elif type(frame) is wire.End:
            self._inbox.ended = True

    def _greeting(self) -> list[bytes]:
        """What follows after the first frame of a connection."""
        frames = self._outbox.frames()
        running = self._inbox.runs()
        if running is not None and _elapsed_ns(running) >= _BUSY_NS:
            frames.append(self._busy(running))
        if self._state == "replace":
            frames.append(wire.encode(wire.Replace(self._why)))
        return frames

    def _busy(self, running: tuple[str, int, int]) -> bytes:
        map_name, index, _ = running
        return wire.encode(wire.Busy(map_name, index, _elapsed_ns(running) // 1000))

    def _tick(self) -> bool:
        running = self._inbox.runs()
        if running is not None and _elapsed_ns(running) >= _BUSY_NS:
            if self._told != running:
                self._told = running
                self._link.send(self._busy(running))
            self._files.take()
        if self._sink.pending:
            self._sink.flush()
        self._outbox.flush_old()
        seen, self._seen = self._seen, (self._calls, running)
        return seen != self._seen

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request["op"]
        while self._link.read():  # what has arrived counts
            pass
        self._link.wake()  # it is not there any more for a main thread that waits
        if op == "hold":
            return self._held()
        if op == "drop":
            dropped = self._inbox.drop(request["map"])
            return {"dropped": dropped, "interrupting": self._interrupts.send(request["map"], None)}
        if op == "interrupt":
            return {"interrupting": self._interrupts.send(request["map"], int(request["index"]))}
        if op == "recall":
            return {"recalled": self._inbox.recall(int(request["count"]))}
        raise ValueError(f"there is no {op!r}")

    def _held(self) -> dict[str, Any]:
        waiting = self._inbox.waiting()  # looked at on a call's way: so none is passed over that moves meanwhile
        running = self._inbox.runs()
        return {
            "pid": self._pid,
            "state": self._state,
            "rss_bytes": self._memory.recent_bytes(),
            "waiting": waiting,
            "running": running and (*running[:2], _elapsed_ns(running) // 1000),
            "unaccepted": self._outbox.unaccepted(),
        }

    # -------------------------------------------------------------------------------------------------- after a fork

    def _in_child(self) -> None:
        self._calls = -1  # so that this process never goes on as the runner
        self._link.close_in_child()
        self._control.close_in_child()

    def _end_child(self, code: int, data: bytes) -> None:
        if code == RAISED:
            failure = wire.read_object(data)
            if failure["type"] == "SystemExit" and (failure["text"] or "0").isdigit():
                os._exit(int(failure["text"] or 0) & 255)
            os.write(2, failure["traceback"].encode())
        os._exit(1 if code else 0)


def _elapsed_ns(running: tuple[str, int, int]) -> int:
    """How long a call has been running."""
    return time.monotonic_ns() - running[2] if running[2] else 0


def _whole(function: dict[str, Any]) -> dict[str, Any]:
    """A `FunctionSpec` with all of its fields: what travels leaves those out that are as usual."""
    pieces = [{**_PIECE, **piece} for piece in function.get("pieces", ())]
    return {**_FUNCTION, **function, "pieces": pieces}


_FUNCTION: dict[str, Any] = {
    "kind": "function",
    "is_async": False,
    "module": "",
    "bundle": "",
    "sys_path": (),
    "data": "",
    "file": "",
    "digest": "",
}
_PIECE: dict[str, Any] = {
    "slot": "",
    "defines": "",
    "names": (),
    "closure": None,
    "given": (),
    "attributes": (),
    "future": (),
}
