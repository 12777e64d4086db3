"""What a client may ask, checked at the edge."""

from __future__ import annotations

import os
import signal

from gpulayer_worker.keeper.context import say
from gpulayer_worker.keeper.records import valid_id
from gpulayer_worker.keeper.spawning import Program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpulayer_worker.keeper.agent import Agent
    from gpulayer_worker.keeper.groups import Groups

    Request = dict[str, Any]
    Reply = Callable[[dict[str, Any]], None]


_SAID_LETTERS = 1000


class RequestError(Exception):
    """A request that can't be carried out as it is; the text says what is wrong with it."""


class Requests:
    """Carries requests out: `handle(request, reply)` replies exactly once, now or later.

    To `run`, `look`, `keep` and `drop`, which are about any number of groups, events are the answer; `say` has none.
    """

    def __init__(self, groups: Groups, agent: Agent, containment: str) -> None:
        self._groups = groups
        self._agent = agent
        self._containment = containment
        self._operations: dict[str, Callable[[Request, Reply], None]] = {
            "spawn": self._spawn,
            "run": self._run,
            "look": lambda request, _: self._groups.look(_ids(request)),
            "keep": lambda request, _: self._groups.keep(_ids(request)),
            "drop": lambda request, _: self._groups.drop(_ids(request)),
            "signal": self._signal,
            "kill": lambda request, reply: self._groups.kill(_id(request), reply),
            "list": lambda _, reply: reply({"ok": True, "groups": self._groups.rows()}),
            "forget": lambda request, reply: reply(self._groups.forget(_id(request))),
            "leaving": self._leaving,
            "say": self._say,
            "ping": lambda _, reply: reply({"ok": True, "pid": os.getpid(), "containment": self._containment}),
        }

    def handle(self, request: Request, reply: Reply) -> None:
        """Carry out one request."""
        name = request.get("op")
        operation = self._operations.get(name) if isinstance(name, str) else None
        try:
            if operation is None:
                raise RequestError(f"unknown operation {name!r}: there are {', '.join(self._operations)}")
            operation(request, reply)
        except RequestError as error:
            reply({"ok": False, "error": str(error)})

    def _spawn(self, request: Request, reply: Reply) -> None:
        program = Program(
            argv=_argv(request),
            env=_env(request),
            cwd=_path(request, "cwd"),
            stdout=_optional_path(request, "stdout"),
            stderr=_optional_path(request, "stderr"),
        )
        self._groups.spawn(id=_id(request), program=program, exit_path=_path(request, "exit"), reply=reply)

    def _run(self, request: Request, _: Reply) -> None:
        jobs = request.get("jobs")
        if not isinstance(jobs, list) or not all(isinstance(job, dict) and valid_id(job.get("id")) for job in jobs):
            raise RequestError("jobs is not a list of objects that each have an id")
        self._groups.start(jobs, _env(request))

    def _signal(self, request: Request, reply: Reply) -> None:
        number = request.get("signal")
        if not isinstance(number, int) or number not in signal.valid_signals():
            raise RequestError(f"signal {number!r} is not the number of a signal")
        reply(self._groups.send(_id(request), number))

    def _say(self, request: Request, _: Reply) -> None:
        text = request.get("text")
        if not isinstance(text, str):
            raise RequestError("text is not a string")
        say("".join(letter if letter.isprintable() else " " for letter in text[:_SAID_LETTERS]), "gpulayer")

    def _leaving(self, request: Request, reply: Reply) -> None:
        code = request.get("code")
        if not isinstance(code, int):
            raise RequestError(f"code {code!r} is not an exit code")
        self._agent.announce(code)
        reply({"ok": True})


def _id(request: Request) -> str:
    id = request.get("id")
    if not valid_id(id):
        raise RequestError(f"id {id!r}: use 1 to 64 of the letters A-Z a-z 0-9 _ -")
    return request["id"]


def _ids(request: Request) -> list[str]:
    ids = request.get("ids")
    if not isinstance(ids, list) or not all(map(valid_id, ids)):
        raise RequestError("ids is not a list of ids")
    return ids


def _text(value: object) -> bool:
    """Whether this can be passed to a program: a string without NUL that the file system's encoding has."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _path(request: Request, name: str) -> str:
    value = request.get(name)
    if not _text(value) or not os.path.isabs(request[name]):
        raise RequestError(f"{name} {value!r} is not an absolute path")
    return request[name]


def _optional_path(request: Request, name: str) -> str | None:
    return None if request.get(name) is None else _path(request, name)


def _argv(request: Request) -> list[str]:
    argv = request.get("argv")
    if not isinstance(argv, list) or not argv or not argv[0] or not all(map(_text, argv)):
        raise RequestError("argv is not a list of strings with a command first")
    return argv


def _env(request: Request) -> dict[str, str]:
    env = request.get("env")
    if not isinstance(env, dict):
        raise RequestError("env is not an object: it is the complete environment")
    for name, value in env.items():
        if not name or "=" in name or not _text(name) or not _text(value):
            raise RequestError(f"env: {name!r} is no name, or its value no string, that an environment can hold")
    return env
