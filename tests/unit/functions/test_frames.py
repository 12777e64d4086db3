"""What is left of our code in the tracebacks that people read."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from gpulayer.client.errors import ControlPlaneError, GpulayerError, interrupted
from gpulayer.functions import frames
from gpulayer.functions.options import CallRefused, Options


def functions_in(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def refuses() -> Options:
    return frames.shortly(Options().merged)({"retries": -1})


def calls_back() -> None:
    def mine() -> None:
        raise GpulayerError("of the user's own code")

    frames.shortly(mine)()


@pytest.mark.parametrize(
    ("act", "kind", "seen"),
    [
        (refuses, CallRefused, ["refuses", "short"]),
        (calls_back, GpulayerError, ["calls_back", "short", "short", "mine"]),
    ],
)
def test_only_our_own_frames_go(act: Callable[[], object], kind: type[BaseException], seen: list[str]) -> None:
    with pytest.raises(kind) as raised:
        act()
    assert functions_in(raised.value)[1:] == seen


def test_why_it_was_stays() -> None:
    def away() -> None:
        raise ControlPlaneError("gone") from OSError("refused")

    with pytest.raises(ControlPlaneError) as raised:
        frames.shortly(away)()
    assert isinstance(raised.value.__cause__, OSError)


def test_an_interrupt_is_python_s_own_and_in_a_notebook_one_word() -> None:
    error = interrupted()
    assert type(error) is KeyboardInterrupt  # a shell is told by which signal the program ended
    assert getattr(error, "_render_traceback_")() == ["KeyboardInterrupt"]  # noqa: B009
