"""What is typed behind an option."""

from __future__ import annotations

import pytest

from gpulayer.parsing import parse_accelerator, parse_duration, parse_pair, parse_size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("500", 500),
        ("500kB", 500_000),
        ("5 MB", 5_000_000),
        ("1.5g", 1_500_000_000),
        ("2TB", 2 * 10**12),
        ("40GiB", 40 * 2**30),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5 m", 90), ("5min", 300), ("2h", 7200), ("0.5", 0.5), ("30d", 2592000)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "5 weeks", "1e3", "5 PB", "4 i"])
def test_what_is_neither(text: str) -> None:
    with pytest.raises(ValueError, match="write it like"):
        parse_size(text)
    with pytest.raises(ValueError, match="write it like"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "near"), [("gpu", "cuda"), ("cida", "cuda"), ("metal", "mps"), ("amd", "rocm")])
def test_an_accelerator_that_is_none(text: str, near: str) -> None:
    assert parse_accelerator("cuda") == "cuda"
    with pytest.raises(ValueError, match=f"unknown accelerator '{text}': cuda, rocm, mps or cpu; did you mean {near}"):
        parse_accelerator(text)


def test_pairs() -> None:
    assert parse_pair("LR=0.1=x") == ("LR", "0.1=x")
    assert parse_pair("EMPTY=") == ("EMPTY", "")
    for text in ("LR", "=1"):
        with pytest.raises(ValueError, match="is no pair; write it like name=value"):
            parse_pair(text)
