"""What the commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from gpulayer.cli.errors import UsageError
from gpulayer.client.client import Client

T = TypeVar("T")
Json = Annotated[bool, typer.Option("--json", help="For a program to read.")]


def group(about: str) -> typer.Typer:
    """Some commands under one name."""
    return typer.Typer(
        help=about,
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def open_client() -> Client:
    """The control plane that is meant: the environment's, or this user's own."""
    return Client()


def parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    """An option's value. Raises `UsageError`, which names the option."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error


def maybe(parse: Callable[[str], T], text: str | None, option: str) -> T | None:
    """The same for an option that may be left out."""
    return None if text is None else parsed(parse, text, option)


def plain(value: Any) -> Any:
    """A view as JSON knows it, with every field, also those that are as by default."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def print_json(value: Any) -> None:
    """For a program to read, on stdout: valid whatever the terminal's letters are."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    sys.stdout.write(json.dumps(plain(value), ensure_ascii=not utf8) + "\n")


def print_lines(lines: list[str]) -> None:
    """For a person to read, on stdout; the signs of states have colours where a terminal takes them."""
    from gpulayer.cli.terminal import coloured, console_of

    console = console_of(sys.stdout)
    for line in lines:
        console.print(coloured(line))


def width() -> int:
    """How wide a table may be."""
    import shutil

    return max(40, min(160, shutil.get_terminal_size((100, 24)).columns))
