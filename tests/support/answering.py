"""A web server of a test's own, that answers as it is told: a control plane, or what is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that came."""

    line: str  # method and path
    token: str
    body: Any  # of JSON; None for no body


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What it gets. `status` 0 breaks the connection instead."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])


def of_json(status: int, value: Any, kind: str = "application/json") -> Answer:
    """An answer in JSON."""
    return Answer(status=status, body=json.dumps(value).encode(), headers={"Content-Type": kind})


def problem(status: int, code: str, title: str = "no", detail: str = "") -> Answer:
    """A problem, as a control plane tells one."""
    value = {"status": status, "code": code, "title": title, "detail": detail}
    return of_json(status, value, "application/problem+json")


class Answering:
    """`url` is where it listens; `asked` is what came; `answer` may be set anew at any time."""

    def __init__(self, answer: Callable[[Asked], Answer]):
        self.answer = answer
        self.asked: list[Asked] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(size)) if size else None
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                asked = Asked(line=f"{self.command} {self.path}", token=token, body=body)
                outer.asked.append(asked)
                given = outer.answer(asked)
                if given.status == 0:
                    self.close_connection = True
                    return
                self.send_response(given.status)
                for name, value in {"Content-Length": str(len(given.body)), **given.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(given.body)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def answering(answer: Callable[[Asked], Answer]) -> Iterator[Answering]:
    """A server while the context lasts."""
    made = Answering(answer)
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))  # how often it looks for its end, s
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
