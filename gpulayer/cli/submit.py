"""`gpulayer submit`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from gpulayer.cli.common import maybe, parsed
from gpulayer.cli.errors import UsageError
from gpulayer.cli.placing import takes_placement
from gpulayer.client.command import Command, CommandRefused, ranges_of
from gpulayer.client.sending import LIMITS
from gpulayer.client.submission import Source, parse_input
from gpulayer.parsing import (
    parse_count,
    parse_duration,
    parse_name,
    parse_pair,
    parse_size,
    parse_time_limit,
)
from gpulayer.source import Limits

_HELP = "Run a command on a machine where it fits: its folder travels, its output comes back as it is written."

_EPILOG = """\b
Examples:
  gpulayer submit -- nvidia-smi                                   any machine, nothing travels
  gpulayer submit --source . -- python train.py --lr 0.1          the folder travels, and the command starts in it
  gpulayer submit --accelerator cuda --devices 2 --min-vram 40GB --source . -- python train.py
  gpulayer submit --framework 'torch>=2.4' --worker-label team=vision --source . -- python train.py
  gpulayer submit --input ~/data:data --output 'out/**' --source . -- bash report.sh
  gpulayer submit --source . --output log --shell 'make all | tee log'
  gpulayer submit --array 0-95 --source . --detach --shell 'python sweep.py $GPULAYER_ARRAY_INDEX'
  gpulayer submit --after k3f9 --source . -- python evaluate.py   once k3f9 has succeeded

\b
stdout carries the program's stdout alone; its stderr and our own lines go to stderr (--quiet: none of ours).
Exit code: the program's, 128 and its signal, or 1 for what failed around it; 2, 69, 75, 77: see gpulayer --help.
Ctrl-C asks whether to stop the job there too. Without a terminal Ctrl-C and SIGTERM cancel it; a terminal that is
closed lets it go on."""

app = typer.Typer(rich_markup_mode=None, add_completion=False)


def _option(*names: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar)


_SETTINGS = {
    "allow_interspersed_args": False,
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
}


@app.command(help=_HELP, epilog=_EPILOG, context_settings=_SETTINGS)
@takes_placement
def submit(
    argv: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", hidden=True, show_default=False)] = None,
    shell: Annotated[str | None, _option("--shell", metavar="LINE", help="A shell's line in place of COMMAND.")] = None,
    source: Annotated[
        str | None, _option("--source", metavar="DIR", help="The folder that travels, and that COMMAND starts in.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        _option("--input", metavar="SRC[:DST]", help="A further file or folder, and where it lies below that folder."),
    ] = None,
    outputs: Annotated[
        list[str] | None, _option("--output", metavar="GLOB", help="Files that come back, like 'out/**'.")
    ] = None,
    to: Annotated[
        str | None, _option("--to", metavar="DIR", help="Where they go (default: the source folder, or this one).")
    ] = None,
    download: Annotated[bool, typer.Option("--download/--no-download", help="Fetch them when it has ended.")] = True,
    env: Annotated[
        list[str] | None, _option("--env", metavar="K=V", help="A variable; K alone takes its value from here.")
    ] = None,
    cwd: Annotated[str, _option("--cwd", metavar="PATH", help="Start in this folder below the source.")] = "",
    *,
    placement: Mapping[str, Any],  # its options stand in its place
    retries: Annotated[int, _option("--retries", metavar="N", help="Start it anew after its machine was lost.")] = 0,
    timeout: Annotated[
        str | None, _option("--timeout", metavar="TIME", help="End it after so much running time, like 10m.")
    ] = None,
    grace: Annotated[
        str, _option("--grace", metavar="TIME", help="Between SIGTERM and SIGKILL, when it is to end.")
    ] = "5s",
    priority: Annotated[int, _option("--priority", metavar="N", help="Higher ones are placed first.")] = 0,
    name: Annotated[str | None, _option("--name", metavar="NAME", help="What it is called in lists.")] = None,
    labels: Annotated[
        list[str] | None, _option("--label", metavar="K=V", help="For finding it: gpulayer job list --label K=V.")
    ] = None,
    key: Annotated[
        str | None, _option("--idempotency-key", metavar="KEY", help="Submitted again with it, it is the same job.")
    ] = None,
    after: Annotated[
        list[str] | None, _option("--after", metavar="JOB", help="Run once this job has succeeded.")
    ] = None,
    array: Annotated[
        str | None, _option("--array", metavar="RANGES", help="A task for each index, like 0-95,100.")
    ] = None,
    include: Annotated[
        list[str] | None, _option("--include", metavar="GLOB", help="Files of the source that travel all the same.")
    ] = None,
    exclude: Annotated[
        list[str] | None, _option("--exclude", metavar="GLOB", help="Files of the source that stay here.")
    ] = None,
    max_file: Annotated[str, _option("--max-file", metavar="SIZE", help="Of one file of the source.")] = "50MB",
    max_bundle: Annotated[str, _option("--max-bundle", metavar="SIZE", help="Of the whole source.")] = "200MB",
    max_files: Annotated[str, _option("--max-files", metavar="N", help="Files of the source.")] = str(LIMITS.files),
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the job's id, and don't wait for its end.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="None of our own lines; errors show.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="One object on stdout at the end; the program's stdout goes to stderr.")
    ] = False,
) -> int:
    """Read the options; what follows from them is in `submitting`."""
    command = _refused_as_usage(
        Command,
        argv=_argv(argv, shell),
        source=_source(source, include, exclude, (max_file, max_bundle, max_files)),
        inputs=[parse_input(each) for each in inputs or ()],
        outputs=outputs or (),
        env=dict(_variable(each) for each in env or ()),
        cwd=cwd,
        **placement,
        retries=retries,
        timeout_s=maybe(parse_time_limit, timeout, "--timeout"),
        grace_s=parsed(parse_duration, grace, "--grace"),
        priority=priority,
        name=maybe(parse_name, name, "--name") or "",
        labels=dict(parsed(parse_pair, each, "--label") for each in labels or ()),
        key=key,
        after=after or (),
        array=maybe(_checked_array, array, "--array"),
    )
    from gpulayer.cli.submitting import Wishes, run

    return run(command, Wishes(to=to, download=download, detach=detach, quiet=quiet, json=json))


def _refused_as_usage(make: type[Command], **fields: Any) -> Command:
    command = make(**fields)
    try:
        command.spec("")
        command.source_folder()
    except CommandRefused as error:
        raise UsageError(str(error)) from error
    return command


def _checked_array(text: str) -> str:
    ranges_of(text)
    return text


def _argv(argv: Sequence[str] | None, shell: str | None) -> Sequence[str] | str:
    if shell is not None:
        if argv:
            raise UsageError(f"--shell has a line already: {argv[0]!r} is one command too many")
        return shell
    if not argv:
        raise UsageError("no command was named: gpulayer submit [OPTIONS] -- COMMAND... (gpulayer submit --help)")
    return list(argv)


def _source(
    folder: str | None, include: list[str] | None, exclude: list[str] | None, limits: tuple[str, str, str]
) -> Source | None:
    if folder is None:
        if include or exclude:
            raise UsageError("--include and --exclude are of a source: name its folder with --source")
        return None
    return Source(
        folder=folder,
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        limits=Limits(
            file_bytes=parsed(parse_size, limits[0], "--max-file"),
            bundle_bytes=parsed(parse_size, limits[1], "--max-bundle"),
            files=parsed(parse_count, limits[2], "--max-files"),
        ),
    )


def _variable(text: str) -> tuple[str, str]:
    if "=" in text:
        return parsed(parse_pair, text, "--env")
    if text not in os.environ:
        raise UsageError(f"--env {text}: no such variable here; write it like --env {text}=value")
    return text, os.environ[text]
