"""Why a call failed, whatever its exception does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gpulayer.protocol.calls import CallFailure
from gpulayer_worker.runner import failures
from gpulayer_worker.runner.loading import MAIN


def failed(raise_it: Callable[[], Any]) -> dict[str, Any]:
    try:
        raise_it()
    except BaseException as error:  # noqa: BLE001 - it is what is looked at
        return failures.of_exception(error, "box")
    raise AssertionError("nothing was raised")


def test_a_failure_is_what_the_protocol_says() -> None:
    import msgspec

    def wrong() -> None:
        raise ValueError("\ud800 no")

    failure = failed(wrong)
    read = msgspec.json.decode(failures.pack(failure), type=CallFailure)
    assert (read.kind, read.type, read.text, read.worker) == ("raised", "ValueError", "\\ud800 no", "box")
    assert read.base == "ValueError"
    assert read.traceback.endswith("ValueError: \\ud800 no\n")
    value = failures.of_text("value", "ValueRefused", "x" * 100_000, "box")
    assert len(msgspec.json.decode(failures.pack(value), type=CallFailure).text) < 20_000


def test_classes_of_sessions_are_called_as_there() -> None:
    def wrong() -> None:
        made = type("Mine", (KeyError,), {"__module__": f"{MAIN}0123456789ab"})
        raise made(f"<{MAIN}0123456789ab.Thing object>")

    failure = failed(wrong)
    assert (failure["type"], failure["base"], failure["text"]) == ("Mine", "KeyError", "'<Thing object>'")
    assert failure["traceback"].endswith("\nMine: '<Thing object>'\n")
    refused = failures.of_text("value", "ValueRefused", f"result is of type {MAIN}0123456789ab.Cfg", "box")
    assert refused["text"] == "result is of type Cfg"


def test_even_an_exception_whose_everything_raises_is_told() -> None:
    class Odd(Exception):
        @property
        def __cause__(self) -> Any:  # pyright: ignore
            raise SystemExit

        def __str__(self) -> str:
            raise KeyboardInterrupt

    def wrong() -> None:
        raise Odd

    failure = failed(wrong)
    assert failure["type"].endswith("Odd")
    assert json.loads(failures.pack(failure)) == failure
    assert "raise Odd" in failure["traceback"]
