"""Maps as a client opens them, and a worker that runs their calls as a test says."""

from __future__ import annotations

from typing import Any

import msgspec

from gpulayer.protocol.calls import (
    OK,
    CallBatch,
    CallRun,
    Calls,
    CallsDone,
    CallsSpec,
    FunctionSpec,
    MapResults,
    MapUpdate,
    MapView,
    OpenMap,
)
from gpulayer.protocol.messages import Output
from gpulayer.protocol.records import Kind, encode_call
from gpulayer.protocol.types import TERMINAL, JobSpec

pack = msgspec.msgpack.Encoder().encode


def a_job(name: str = "f", **more: Any) -> bytes:
    return pack(JobSpec(calls=CallsSpec(function=FunctionSpec(name=name, qualname=name), **more)))


def opening(n: int, key: str, *args: bytes, job: bytes = b"", **more: Any) -> OpenMap:
    """A map of so many calls, all of which come with it unless told."""
    return OpenMap(n=n, key=key, job=job or a_job(), args=args, **{"last": True, **more})


class Runner:
    """A worker that runs calls as the test says."""

    def __init__(self, worker: Any):
        self.worker = worker
        self.attempt = ""
        self.offset = 0

    def begin(self) -> None:
        """Take the lease."""
        self.attempt = self.worker.assigned().attempt
        self.worker.begin(self.attempt)

    def batches(self) -> tuple[CallBatch, ...]:
        """The next calls that it is given."""
        calls = self.worker.until(Calls)
        assert calls.attempt == self.attempt
        return calls.batches

    def given(self, count: int) -> list[tuple[int, bytes]]:
        """So many calls, each with its index; what is given is done at once with its arguments as the result."""
        got: list[tuple[int, bytes]] = []
        while len(got) < count:
            for batch in self.batches():
                got += enumerate(batch.args, batch.first)
                self.done(batch.map, batch.first, *batch.args)
        return got

    def done(self, name: str, first: int, *data: bytes, codes: bytes = b"") -> None:
        """Results."""
        run = CallRun(map=name, first=first, codes=codes or bytes([OK]) * len(data), data=data, spent_us=len(data))
        self.worker.say(CallsDone(attempt=self.attempt, runs=(run,)))

    def print(self, name: str, index: int, text: bytes, kind: int = Kind.CALL_STDOUT, seq: int = 0) -> Output:
        """What a call writes, as a message that is yet to be sent."""
        data = encode_call(kind, name, index, seq, text)
        message = Output(attempt=self.attempt, offset=self.offset, data=data)
        self.offset += len(data)
        return message


def to_end(client: Any, n: int) -> tuple[list[bytes], MapView]:
    """The results of a map until it has ended, and how it did."""
    data: list[bytes] = []
    while True:
        message = client.next()
        if isinstance(message, MapResults) and message.n == n:
            for run in message.runs:
                assert run.first == len(data)
                data += run.data
        elif isinstance(message, MapUpdate) and message.n == n and message.map.state in TERMINAL:
            return data, message.map
