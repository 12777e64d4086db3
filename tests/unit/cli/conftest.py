"""A control plane that the commands talk to, played by the tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from gpulayer.cli import common
from gpulayer.cli.__main__ import run
from gpulayer.client.asks import Ask
from gpulayer.client.command import Command
from gpulayer.client.errors import RequestRefused
from gpulayer.client.files import Came
from gpulayer.protocol.types import JobView, Problem, State

DONE = JobView(id="k3f9", state=State.SUCCEEDED, name="train.py", worker="box", attempt="k3f9-1", attempts=1)


@dataclass(kw_only=True)
class FakeClient:
    """Answers what a test says."""

    views: dict[str, JobView] = field(default_factory=lambda: {"k3f9": DONE})
    asked: list[str] = field(default_factory=list[str])
    bodies: list[Any] = field(default_factory=list[Any])
    answers: dict[str, Any] = field(default_factory=dict[str, Any])  # by method and path, without a query
    commands: list[Command] = field(default_factory=list[Command])
    interrupted: signal.Signals | None = None  # comes while a job is submitted
    came: Came = field(default_factory=lambda: Came(work="job"))
    streamed: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])

    def ask(self, ask: Ask[Any]) -> Any:
        self.asked.append(f"{ask.method} {ask.path}")
        self.bodies.append(msgspec.json.decode(ask.content) if ask.content else None)
        answer = self.answers[f"{ask.method} {ask.path.partition('?')[0]}"]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def status(self, name: str) -> JobView:
        if name not in self.views:
            raise RequestRefused(Problem(status=404, code="no_such_job", title=f"no job {name}"))
        return self.views[name]

    def jobs(self, limit: int) -> list[JobView]:
        return list(self.views.values())

    def wait(self, jobs: list[str], timeout: float | None) -> dict[str, State]:
        self.asked.append(f"wait {' '.join(jobs)} {timeout}")
        return {}

    def log_bytes(self, job: str, **narrowed: Any) -> bytes:
        self.asked.append(f"logs {job} {narrowed}")
        return b"the log\n"

    def stream(self, job: str, index: int | None) -> Iterator[tuple[str, bytes]]:
        yield from self.streamed

    def submit_command(
        self, command: Command, tell: Callable[[str], None], asking: Callable[[], AbstractContextManager[None]]
    ) -> tuple[JobView, None, None]:
        with asking():
            self.commands.append(command)
            if self.interrupted is not None:
                signal.raise_signal(self.interrupted)
        return self.views["k3f9"], None, None

    def download_to(self, view: JobView, home: Any, tell: Callable[[str], None]) -> Came:
        self.asked.append(f"download {view.id} to {home.root} replaces={home.replaces}")
        return self.came

    def workers(self) -> list[Any]:
        return []

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(common, "open_client", lambda: fake)
    return fake


@dataclass(frozen=True, kw_only=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def gpulayer(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command line in this process."""

    def type_(*words: str) -> Said:
        capfd.readouterr()
        code = run(list(words))
        out, err = capfd.readouterr()
        return Said(code=code, out=out, err=err)

    return type_
