"""The commands of `%gpulayer`."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from gpulayer.client import asks
from gpulayer.client.api import Api
from gpulayer.client.errors import RequestRefused
from gpulayer.client.explanation import settled
from gpulayer.explaining import explanation_lines
from gpulayer.machines import machine_lines
from gpulayer.notebook.cellrun import SESSION_IDLE_S, CellRunner
from gpulayer.notebook.joblog import TextReplay, show_so_far
from gpulayer.notebook.options import (
    COMMANDS,
    HelpWanted,
    NotebookSession,
    Parser,
    UsageError,
    add_idle_timeout,
    add_max_output,
    add_place,
    cell_parser,
    parse_count,
    parse_name,
    requirements_of,
    split,
)
from gpulayer.notebook.status import StatusLine
from gpulayer.notebook.stop import Stop
from gpulayer.protocol.types import JobView, Requirements, State
from gpulayer.tables import WIDTH, job_table, map_line, overview, session_table
from gpulayer.words import limit, needs, status_line

_LAST_JOBS = 10
_ALL_JOBS = 1000  # what the control plane tells at most
_NAMED = 6  # of what there is, where something else was asked for
_EXPLAINED = 5  # waiting jobs whose reasons are asked for: each is a request


class Home(Protocol):
    """What the commands use of the magics that they belong to."""

    shell: Any
    session: NotebookSession | None  # of the whole notebook; the commands set it

    def api(self) -> Api: ...

    def runner(self) -> CellRunner: ...


def run_line(home: Home, line: str) -> None:
    """Do what a `%gpulayer` line asks for. Raises `UsageError`, `HelpWanted` and what the request raises."""
    words = split(line)
    if not words or words[0] in ("-h", "--help", "help"):
        raise HelpWanted(line_help())
    name, rest = words[0], words[1:]
    if name.startswith("-"):
        raise UsageError(f"options belong to a cell: %%gpulayer {line.strip()}, with two % in its first line")
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else f": one of {', '.join(COMMANDS)}"
        raise UsageError(f"unknown command {name!r}{hint} (%gpulayer -h)")
    parser = command_parser(name)
    if "-h" in rest or "--help" in rest:
        raise HelpWanted(parser.format_help())
    _COMMANDS[name].run(home, parser.parse_args(rest))


def line_help() -> str:
    """What `%gpulayer` can do, and what `%%gpulayer` can."""
    width = max(map(len, COMMANDS))
    commands = "".join(f"  {name:<{width}}  {_COMMANDS[name].summary}\n" for name in COMMANDS)
    return (
        "usage: %gpulayer COMMAND [-h]\n\nSee and steer what runs on your machines.\n\n"
        f"commands:\n{commands}\nTwo % in a cell's first line run the cell there:\n\n{cell_parser().format_help()}"
    )


@lru_cache(maxsize=len(COMMANDS))
def command_parser(name: str) -> Parser:
    """The parser of one command."""
    command = _COMMANDS[name]
    examples = "examples:\n" + "".join(f"  {each}\n" for each in command.examples)
    parser = Parser(f"%gpulayer {name}", f"{command.summary[0].upper()}{command.summary[1:]}.", examples)
    command.arguments(parser)
    return parser


def _say(lines: Iterable[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")


# ---------------------------------------------------------------- looking


def _status(home: Home, given: argparse.Namespace) -> None:
    api = home.api()
    _say(overview(api.workers(), _explained(api, api.jobs(limit=_LAST_JOBS)), api.sessions(), time.time()))


def _jobs(home: Home, given: argparse.Namespace) -> None:
    api = home.api()
    most = _ALL_JOBS if given.all else given.n
    jobs = _explained(api, api.jobs(limit=most))
    _say(job_table(jobs, time.time()) if jobs else ["no jobs yet"])
    if len(jobs) == most and not given.all:
        _say([f"the last {most}; more with -n N or --all"])


def _explained(api: Api, jobs: list[JobView]) -> list[JobView]:
    """The jobs; those that wait with their reasons, which a list comes without."""
    waiting = [job.id for job in jobs if job.state is State.QUEUED][:_EXPLAINED]
    return [api.job(job.id) if job.id in waiting else job for job in jobs]


def _sessions(home: Home, given: argparse.Namespace) -> None:
    sessions = home.api().sessions()
    _say(session_table(sessions, time.time()) if sessions else ["no sessions: %%gpulayer --session NAME opens one"])


def _fleet(home: Home, given: argparse.Namespace) -> None:
    workers = home.api().workers()
    _say(machine_lines(workers, time.time(), WIDTH) or ["no machines yet: the first cell starts this one"])


# ---------------------------------------------------------------- one job


def _logs(home: Home, given: argparse.Namespace) -> None:
    job = _known_job(home, given.job)
    if job.calls is not None:
        _say_calls_text(home, job, given.max_output)
        return
    replay = TextReplay(home.shell, job.id, given.max_output)
    with Stop() as stop:
        stop.arm()
        job = show_so_far(home.runner().connection, replay, job.id, stop)
    if not replay.letters:
        _say([f"no text{'' if job.terminal else ' yet'} · {status_line(job, time.time())}"])


def _say_calls_text(home: Home, job: JobView, most_bytes: int) -> None:
    text = home.api().ask(asks.logs(job.id, tail_bytes=most_bytes)).decode(errors="replace")
    if text:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    else:
        _say([f"no text{'' if job.terminal else ' yet'} · {status_line(job, time.time())}"])


def _attach(home: Home, given: argparse.Namespace) -> None:
    job = _known_job(home, given.job)  # a wrong name is told before anything else
    if job.calls is not None:
        raise UsageError(
            f"{job.id} is a function: gl.call('{job.id}.1') gives the results of its first map, or call; "
            f"%gpulayer logs {job.id} shows what its calls printed"
        )
    runner = home.runner()
    status = StatusLine(home.shell)
    status.show(job)  # first, above the output
    subscription = runner.connection.follow(job.id)
    try:
        with Stop() as stop:
            stop.arm()
            stop.watch(subscription)
            runner.follow(home.shell, subscription, status, given.max_output, stop, cancels=False)
    except KeyboardInterrupt:
        _say([f"\ndetached; job {job.id} goes on"])


def _explain(home: Home, given: argparse.Namespace) -> None:
    """Where a cell, or a command, with these options would run."""
    ask = asks.explain(requirements_of(given, one_machine=False), wait_for_worker=given.wait_for_worker)
    _say(explanation_lines(settled(lambda: home.api().ask(ask)), WIDTH))


def _cancel(home: Home, given: argparse.Namespace) -> None:
    if given.job.partition(".")[2].isdecimal():  # of a map, or call
        _say([map_line(home.api().ask(asks.cancel_map(given.job)), time.time())])
        return
    job = _known_job(home, given.job)
    _say([status_line(home.api().cancel(job.id), time.time())])


def _known_job(home: Home, name: str) -> JobView:
    api = home.api()
    try:
        return api.job(name)
    except RequestRefused as error:
        if error.problem.code != "no_such_job":
            raise
        last = api.jobs(limit=50)
    raise UsageError(_unknown("job", name, [job.id for job in last], "the last ones are", "there are none yet"))


def _unknown(what: str, name: str, there: list[str], are: str, none: str) -> str:
    """'no job k3f8; did you mean k3f9? the last ones are k3f9, a81c and 3 more'."""
    if not there:
        return f"no {what} {name}: {none}"
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}? {are}" if near else f"; {are}"
    more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    return f"no {what} {name}{hint} {', '.join(there[:_NAMED])}{more}"


# ---------------------------------------------------------------- sessions


def _session(home: Home, given: argparse.Namespace) -> None:
    if given.off:
        if given.name:
            raise UsageError(f"--off ends the notebook's session; to end the kernel: %gpulayer release {given.name}")
        _forget(home)
    elif given.name is None:
        if given.idle_timeout is not None or requirements_of(given) != Requirements():
            raise UsageError("name the session: %gpulayer session NAME, then the options")
        _say([_kept(home.session)])
    else:
        requirements = requirements_of(given)
        if requirements.worker is not None and not given.wait_for_worker:
            _known_worker(home, requirements.worker)
        home.session = NotebookSession(
            name=given.name,
            requirements=requirements,
            wait_for_worker=given.wait_for_worker,
            idle_timeout_s=given.idle_timeout,
        )
        _say([_kept(home.session)])


def _kept(session: NotebookSession | None) -> str:
    if session is None:
        return "no session: each %%gpulayer cell is fresh (%gpulayer session NAME keeps one for all of them)"
    wishes = [needs(session.requirements)]
    wishes.append(f"ends after {limit(session.idle_timeout_s or SESSION_IDLE_S)} without a cell")
    return f"session {session.name} for all %%gpulayer cells here · {' · '.join(filter(None, wishes))}"


def _forget(home: Home) -> None:
    kept, home.session = home.session, None
    if kept is None:
        _say([_kept(None)])
    else:
        _say([f"each %%gpulayer cell is fresh again; session {kept.name} stays until it is idle for too long"
              f" (%gpulayer release {kept.name} ends it now)"])  # fmt: skip


def _known_worker(home: Home, name: str) -> None:
    there = [worker.name for worker in home.api().workers()]
    if name not in there:
        raise UsageError(_unknown("worker", name, there, "there are", "there are none yet"))


def _release(home: Home, given: argparse.Namespace) -> None:
    api = home.api()
    try:
        api.release(given.name)
    except RequestRefused as error:
        if error.problem.code != "no_such_session":
            raise
        there = [session.name for session in api.sessions()]
        raise UsageError(_unknown("session", given.name, there, "open are", "none is open")) from None
    _say([f"session {given.name} is released; its devices are free once its processes are gone"])


# ---------------------------------------------------------------- what each takes


def _nothing(parser: Parser) -> None:
    pass


def _a_job(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", help="its short name, such as k3f9")


def _a_job_to_show(parser: Parser) -> None:
    _a_job(parser)
    add_max_output(parser)


def _how_many(parser: Parser) -> None:
    parser.add_argument("-n", type=parse_count, default=_LAST_JOBS, metavar="N",
        help=f"how many, newest first (default {_LAST_JOBS})")  # fmt: skip
    parser.add_argument("--all", action="store_true", help=f"all of them, at most the last {_ALL_JOBS}")


def _a_session(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name")


def _for_the_notebook(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", type=parse_name, metavar="NAME", help="its name; without it, what is set")
    add_place(parser)
    add_idle_timeout(parser)
    parser.add_argument("--off", action="store_true", help="let each cell be fresh again; the session itself stays")


@dataclass(frozen=True, kw_only=True)
class _Command:
    summary: str
    examples: tuple[str, ...]
    run: Callable[[Home, argparse.Namespace], None]
    arguments: Callable[[Parser], None] = _nothing


_COMMANDS = {
    "status": _Command(
        summary="machines, the last jobs and the sessions at a glance",
        examples=("%gpulayer status",),
        run=_status,
    ),
    "jobs": _Command(
        summary="the last jobs: where, how long, and what each waits for",
        examples=("%gpulayer jobs", "%gpulayer jobs -n 50", "%gpulayer jobs --all"),
        run=_jobs,
        arguments=_how_many,
    ),
    "logs": _Command(
        summary="the text of a job so far; comes back at once",
        examples=("%gpulayer logs k3f9", "%gpulayer logs k3f9 --max-output 20MB"),
        run=_logs,
        arguments=_a_job_to_show,
    ),
    "attach": _Command(
        summary="all of a job's output, from its first line, and what follows; Stop detaches",
        examples=("%gpulayer attach k3f9", "%gpulayer attach k3f9 --max-output 1GB"),
        run=_attach,
        arguments=_a_job_to_show,
    ),
    "cancel": _Command(
        summary="end a job; one that runs is interrupted first",
        examples=("%gpulayer cancel k3f9",),
        run=_cancel,
        arguments=_a_job,
    ),
    "explain": _Command(
        summary="where a cell would run now, or machine by machine why it would not",
        examples=(
            "%gpulayer explain --accelerator cuda --min-vram 40GB",
            "%gpulayer explain --framework 'torch>=2.4' --framework jax",
        ),
        run=_explain,
        arguments=add_place,
    ),
    "sessions": _Command(
        summary="the open sessions, and what each does",
        examples=("%gpulayer sessions",),
        run=_sessions,
    ),
    "session": _Command(
        summary="one session for all %%gpulayer cells of this notebook",
        examples=(
            "%gpulayer session train                      the cells that follow share a kernel",
            "%gpulayer session train --accelerator cuda   and keep a CUDA device",
            "%gpulayer session                            what is set",
            "%gpulayer session --off                      each cell is fresh again",
        ),
        run=_session,
        arguments=_for_the_notebook,
    ),
    "release": _Command(
        summary="end a session: its kernel, its variables and its devices go",
        examples=("%gpulayer release train",),
        run=_release,
        arguments=_a_session,
    ),
    "fleet": _Command(
        summary="every machine: its devices and who holds them, frameworks that work there, how it fares",
        examples=("%gpulayer fleet",),
        run=_fleet,
    ),
}
