"""`gpulayer job`: look at jobs, wait for them, fetch what they left."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from gpulayer.cli import common
from gpulayer.cli.common import Json, maybe, parsed, plain, print_json, print_lines
from gpulayer.cli.errors import UsageError
from gpulayer.cli.terminal import Terminal
from gpulayer.cli.watch import ended_line, why_rejected
from gpulayer.client import asks
from gpulayer.client.client import Client
from gpulayer.client.ending import exit_code
from gpulayer.client.errors import RequestRefused
from gpulayer.parsing import parse_count, parse_size, parse_time_limit
from gpulayer.protocol.types import JobView, State
from gpulayer.tables import job_table, map_line
from gpulayer.words import near_words, status_line

_PAGE = 1000
_EXPLAINED = 5  # waiting jobs whose reasons are asked for: each is a request

app = common.group("Look at jobs, wait for them, and fetch what they wrote and made.")

OneJob = Annotated[str, typer.Argument(metavar="JOB", help="Its short name, such as k3f9.", show_default=False)]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB", help="Short names, such as k3f9 a81c.", show_default=False)]
Index = Annotated[int | None, typer.Option("--index", metavar="N", help="The task N of an array.")]


def _examples(*lines: str) -> str:
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@app.command(
    "list",
    epilog=_examples(
        "gpulayer job list                                  the last 20",
        "gpulayer job list --state running",
        "gpulayer job list --label experiment=7 --all --json | jq -r '.[].id'",
    ),
)
def list_jobs(
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only those waiting, running, done, failed …")
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="K=V", help="Only those with this label.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this name.")] = None,
    owner: Annotated[str | None, typer.Option(metavar="WHO", help="Only this person's.")] = None,
    limit: Annotated[str, typer.Option("--limit", "-n", metavar="N", help="How many, newest first.")] = "20",
    every: Annotated[bool, typer.Option("--all", help="All that are kept.")] = False,
    json: Json = False,
) -> None:
    """The last jobs: where, how long, and what each waits for."""
    wanted = parsed(parse_count, limit, "--limit")
    narrowed = {
        "state": _state(state),
        "label": _label(label),
        "name": name or "",
        "owner": owner or "",
    }
    with common.open_client() as client:
        jobs = _pages(client, None if every else wanted, narrowed)
        if json:
            print_json(jobs)
        else:
            shown = _explained(client, jobs)
            print_lines(job_table(shown, time.time(), common.width()) if shown else ["no jobs" + _narrowly(narrowed)])


def _pages(client: Client, wanted: int | None, narrowed: dict[str, str]) -> list[JobView]:
    jobs: list[JobView] = []
    while wanted is None or len(jobs) < wanted:
        count = _PAGE if wanted is None else min(_PAGE, wanted - len(jobs))
        page = client.ask(asks.jobs(count, before=jobs[-1].id if jobs else "", **narrowed))
        jobs += page
        if len(page) < count:
            break
    return jobs


def _explained(client: Client, jobs: list[JobView]) -> list[JobView]:
    """The jobs; the first that wait with their reasons, which a list comes without."""
    waiting = [job.id for job in jobs if job.state is State.QUEUED][:_EXPLAINED]
    return [client.status(job.id) if job.id in waiting else job for job in jobs]


def _state(text: str | None) -> str:
    """A state by the word that people read, or by its name."""
    if text is None:
        return ""
    words = {"waiting": "queued", "starting": "assigned", "done": "succeeded", "out of reach": "unreachable"}
    names = [state.value for state in State]
    if text not in names and text not in words:
        every = [*words, *names]
        raise UsageError(f"--state: {text!r} is no state{near_words(text, every)}: one of {', '.join(every)}")
    return words.get(text, text)


def _label(text: str | None) -> str:
    if text is not None and not text.partition("=")[2]:
        raise UsageError(f"--label: {text!r} is no label; write it like name=value")
    return text or ""


def _narrowly(narrowed: dict[str, str]) -> str:
    given = [f"{key} {value}" for key, value in narrowed.items() if value]
    return f" with {', '.join(given)}" if given else " yet: gpulayer submit -- COMMAND makes one"


@app.command(
    epilog=_examples(
        "gpulayer job show k3f9",
        "gpulayer job show k3f9 --json",
        "gpulayer job show k3f9.17              one map, or call, of a function",
    )
)
def show(job: OneJob, json: Json = False) -> None:
    """One job in full. Its state and why it waits, what it asked for, its tries with their figures; of a function its
    maps and calls.
    """
    from gpulayer.cli.details import details
    from gpulayer.cli.maps import SHOWN, is_map, known_map

    with common.open_client() as client:
        if is_map(job):
            one = known_map(client, job)
            print_json(one) if json else print_lines([map_line(one, time.time())])
            return
        view = _known(client, job)
        attempts = client.ask(asks.attempts(view.id))
        tasks = client.ask(asks.tasks(view.id)) if view.tasks else []
        maps = client.ask(asks.maps(view.id, SHOWN)) if view.calls is not None else []
        if json:
            print_json({**plain(view), "attempt_records": attempts, "task_records": tasks, "map_records": maps})
        else:
            print_lines(details(view, attempts, tasks, time.time(), common.width(), maps))


def _known(client: Client, name: str, of_map: str = "") -> JobView:
    """A job. Raises `UsageError` with near names where there is none; `of_map`: what helps with a map's name."""
    try:
        return client.status(name)
    except RequestRefused as error:
        if error.problem.code not in ("no_such_job", "no_such_path"):  # the second of what can't be a name
            raise
        last = [job.id for job in client.jobs(50)]
    job = name.partition(".")[0]
    if job != name and job in last:
        raise UsageError(f"{name} is a map of job {job}{of_map.format(job=job)}")
    raise UsageError(f"no job {name}{near_words(name, last)}; gpulayer job list shows them")


@app.command(
    epilog=_examples(
        "gpulayer job logs k3f9                 what it wrote so far",
        "gpulayer job logs -f k3f9              and what follows, to its end; Ctrl-C leaves it running",
        "gpulayer job logs k3f9 --index 7       of an array's task",
        "gpulayer job logs k3f9 --stream stderr --tail 10kB",
    ),
)
def logs(
    job: OneJob,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it has ended.")] = False,
    stream: Annotated[str | None, typer.Option(metavar="NAME", help="stdout or stderr alone.")] = None,
    index: Index = None,
    tail: Annotated[str | None, typer.Option(metavar="SIZE", help="The last of it only, like 10kB.")] = None,
) -> None:
    """What a job wrote. Both of its streams go to stdout, in the order in which it wrote them."""
    if stream not in (None, "stdout", "stderr"):
        raise UsageError(f"--stream: {stream!r} is no stream: stdout or stderr")
    last = maybe(parse_size, tail, "--tail")
    if follow and last is not None:
        raise UsageError("--tail is of what is there; with -f all of it comes")
    with common.open_client() as client:
        view = _known(client, job, "; what its calls print is the job's: gpulayer job logs {job}")
        out = sys.stdout.buffer
        if not follow:
            out.write(client.log_bytes(view.id, stream=stream, index=index, tail_bytes=last))
            out.flush()
            return

        def take(name: str, data: bytes) -> None:
            if stream in (None, name):
                out.write(data)
                out.flush()

        if view.calls is not None and index is None:
            from gpulayer.cli.maps import follow_runners

            follow_runners(client, view.id, take)
            return
        for name, data in client.stream(view.id, index):
            take(name, data)


@app.command(
    epilog=_examples(
        "gpulayer job wait k3f9                 the exit code is the job's, as of gpulayer submit",
        "gpulayer job wait k3f9 a81c            0 if all succeeded, else 1",
        "gpulayer job wait k3f9 --timeout 10m   75 if it goes on then",
    ),
)
def wait(
    jobs: Jobs,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="At most so long, like 10m.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing.")] = False,
    json: Json = False,
) -> int:
    """Wait until jobs have ended; of a function, until its calls are done: its runners may stay warm for more."""
    limit_s = maybe(parse_time_limit, timeout, "--timeout")
    with Terminal(quiet=quiet) as terminal, common.open_client() as client:
        known = [_known(client, job, "; wait for the job") for job in jobs]
        views = _waited(client, known, limit_s)
        for view in views:
            terminal.say(ended_line(view))
            if view.state is State.REJECTED:
                for why in why_rejected(view):
                    terminal.say(why)
        codes = [_code(view) for view in views]
        if json:
            print_json([{**plain(view), "exit_code": code} for view, code in zip(views, codes, strict=True)])
    if len(codes) == 1:
        return codes[0]
    return 75 if 75 in codes else int(any(codes))


def _waited(client: Client, known: list[JobView], limit_s: float | None) -> list[JobView]:
    from gpulayer.cli.maps import wait_for_calls

    until_s = None if limit_s is None else time.monotonic() + limit_s
    client.wait([view.id for view in known if view.calls is None], limit_s)
    for view in known:
        if view.calls is not None:
            wait_for_calls(client, view.id, None if until_s is None else until_s - time.monotonic())
    return [client.status(view.id) for view in known]


def _code(view: JobView) -> int:
    from gpulayer.cli.maps import idle

    return exit_code(view) if view.terminal else 0 if idle(view) else 75


@app.command(
    epilog=_examples(
        "gpulayer job cancel k3f9",
        "gpulayer job cancel k3f9 --give-up",
        "gpulayer job cancel k3f9.17            one map, or call, of a function; its runners stay",
    )
)
def cancel(
    jobs: Jobs,
    give_up: Annotated[
        bool,
        typer.Option("--give-up", help="Don't wait for a machine that is out of reach; what it still does is lost."),
    ] = False,
    json: Json = False,
) -> None:
    """End jobs: SIGTERM, and SIGKILL after their grace; of a function its calls and its runners, or one map alone.
    Comes back at once.
    """
    from gpulayer.cli.maps import is_map, known_map

    with common.open_client() as client:
        known = [known_map(client, job) if is_map(job) else _known(client, job) for job in jobs]
        views = [
            client.ask(asks.cancel(view.id, give_up=give_up))
            if isinstance(view, JobView)
            else client.ask(asks.cancel_map(view.id))
            for view in known
        ]
        if json:
            print_json(views)
        else:
            now = time.time()
            print_lines(
                [status_line(view, now) if isinstance(view, JobView) else map_line(view, now) for view in views]
            )


@app.command(
    epilog=_examples(
        "gpulayer job download k3f9             into this folder",
        "gpulayer job download k3f9 --to out    into another; of an array into out/k3f9/INDEX",
    ),
)
def download(
    job: OneJob,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Where they go.")] = ".",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are other ones here.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but errors.")] = False,
    json: Json = False,
) -> int:
    """Fetch the files that a job left. One that is here with other content stays: the job's is NAME.from-JOB."""
    from gpulayer.client.files import Home

    with Terminal(quiet=quiet) as terminal, common.open_client() as client:
        view = _known(client, job)
        home = Home(root=Path(to).expanduser().absolute(), replaces=overwrite)
        came = client.download_to(view, home, terminal.status)
        for line in came.lines():
            terminal.say(f"✓ {line}")
        if not (came.lines() or came.refused):
            more = "" if view.terminal else "; it has not ended yet"
            terminal.say(f"job {view.id} left no files{more} (gpulayer submit --output GLOB names them)")
        for line in came.warnings():
            terminal.warn(f"gpulayer: {line}")
        if json:
            print_json(_came(came))
    return 1 if came.refused else 0


def _came(came: Any) -> dict[str, Any]:
    return {
        "written": [{"path": path, "size": count} for path, count in came.written],
        "here_already": came.here_already,
        "beside": [{"path": path, "written": new} for path, new in came.beside],
        "refused": [{"path": path, "why": why} for path, why in came.refused],
    }
