"""The command line itself: help, what is no command, and how errors are said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpulayer.cli import common, elsewhere
from gpulayer.cli.app import COMMANDS
from gpulayer.client.errors import ControlPlaneError, GpulayerError, RequestRefused
from gpulayer.protocol.types import Problem, Reason

Gpulayer = Callable[..., Any]
FAULT = "this is a fault of GPUlayer, gpulayer --debug … shows where"


def refused(status: int, title: str, **more: Any) -> RequestRefused:
    return RequestRefused(Problem(status=status, code="x", title=title, **more))


def test_help_teaches_by_example(gpulayer: Gpulayer) -> None:
    said = gpulayer("--help")
    assert (said.code, said.err) == (0, "")
    for name, (_, text) in COMMANDS.items():
        assert f"  {name}" in said.out
        assert text in said.out
    assert "gpulayer submit --source . -- python train.py" in said.out
    assert "130, 143" in said.out


@pytest.mark.parametrize(
    "words",
    [
        ("submit",),
        ("explain",),
        ("job", "list"),
        ("job", "show"),
        ("job", "logs"),
        ("job", "wait"),
        ("job", "cancel"),
        ("job", "download"),
        ("token", "create"),
        ("token", "list"),
        ("token", "revoke"),
        ("resources", "list"),
        ("resources", "detect"),
    ],
    ids=" ".join,
)
def test_each_command_shows_examples(gpulayer: Gpulayer, words: tuple[str, ...]) -> None:
    said = gpulayer(*words, "--help")
    assert said.code == 0
    assert "Examples:" in said.out
    assert f"  gpulayer {' '.join(words)}" in said.out.partition("Examples:")[2]


def test_nothing_said_is_help(gpulayer: Gpulayer) -> None:
    said = gpulayer()
    assert said.code == 2
    assert "Commands:" in said.out + said.err


def test_versions(gpulayer: Gpulayer) -> None:
    from gpulayer import __version__

    assert gpulayer("--version").out == f"gpulayer {__version__}\n"


@pytest.mark.parametrize(
    "words", [("sumbit",), ("job", "shw"), ("submit", "--sorce"), ("job", "show"), ("token", "create")]
)
def test_what_is_not_understood_is_one_line(gpulayer: Gpulayer, words: tuple[str, ...]) -> None:
    said = gpulayer(*words)
    assert said.code == 2
    assert said.err.startswith("gpulayer: ")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (ControlPlaneError("nobody\nanswers"), 75, ["gpulayer: nobody answers"]),
        (GpulayerError("no"), 1, ["gpulayer: no"]),
        (refused(403, "not you", detail="needs admin"), 77, ["gpulayer: not you: needs admin"]),
        (refused(507, "the disk is full"), 75, ["gpulayer: the disk is full"]),
        (refused(409, "another payload"), 1, ["gpulayer: another payload"]),
        (refused(400, "t", reasons=(Reason(worker="w", code="c", text="r"),)), 1, ["gpulayer: t", "  w  r"]),
        (PermissionError(13, "Permission denied", "/x"), 1, ["gpulayer: /x: Permission denied"]),
        (ZeroDivisionError("division by zero"), 1, [f"gpulayer: ZeroDivisionError: division by zero; {FAULT}"]),
    ],
)
def test_errors_are_said_in_one_line_and_have_a_code(
    gpulayer: Gpulayer, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, lines: list[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(common, "open_client", fail)
    said = gpulayer("resources", "list")
    assert (said.code, said.err.splitlines()) == (code, lines)
    assert "Traceback" in gpulayer("--debug", "resources", "list").err


def test_an_interrupt_is_said_by_the_code_alone(gpulayer: Gpulayer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(common, "open_client", interrupted)
    assert gpulayer("resources", "list") == type(gpulayer("--version"))(code=130, out="", err="")


def test_commands_of_other_packages_get_their_words_as_they_are(
    gpulayer: Gpulayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Entry:
        def load(self) -> Callable[[list[str]], int]:
            return lambda words: 7 if words == ["--host", "-h", "--", "--x"] else 8

    monkeypatch.setattr(
        elsewhere.importlib.metadata, "entry_points", lambda group, name: [Entry()] if name == "up" else []
    )
    assert gpulayer("up", "--host", "-h", "--", "--x").code == 7
    said = gpulayer("join", "https://x")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "gpulayer join is not installed here" in said.err
