"""Versions as machines tell them: whatever the text, a comparison says yes or no."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from gpulayer_server.scheduling import versions


@pytest.mark.parametrize(
    ("version", "wanted", "reached"),
    [
        ("8.0", "8", True),
        ("8", "8.0", True),
        ("10.0", "9.0", True),
        ("7.5", "8.0", False),
        ("535.104.05", "535.104", True),
        ("535.54.03", "535.104", False),
        ("550.54.14-open", "550.54", True),
        ("", "1", False),
        ("N/A", "1", False),
    ],
)
def test_numbers_are_compared_as_numbers(version: str, wanted: str, reached: bool):
    numbers = versions.numbers(wanted)
    assert numbers is not None
    assert versions.at_least(version, numbers) == reached


@pytest.mark.parametrize("text", ["", "8.", ".8", "8..0", "sm_80", "8.0 ", "8,0", "-8"])
def test_what_is_no_version(text: str):
    assert versions.numbers(text) is None


@given(st.text(max_size=12))
def test_no_text_of_a_machine_raises(text: str):
    assert versions.at_least(text, (10**10,)) is False
    assert versions.satisfies(text, SpecifierSet("==0.123.9")) is (versions.parsed(text) == versions.parsed("0.123.9"))
    assert versions.cuda_release(text, text) == "" or versions.cuda_release(text, text).endswith(".x")


@pytest.mark.parametrize(
    ("cuda", "driver", "release"),
    [
        ("12.2", "", "12.x"),
        ("13.0", "535.1", "13.x"),
        ("", "580.65.06", "13.x"),
        ("", "535.104.05", "12.x"),
        ("", "470.82.01", "11.x"),
        ("", "390.1", ""),
        ("", "", ""),
    ],
)
def test_the_builds_for_cuda_that_a_driver_runs(cuda: str, driver: str, release: str):
    assert versions.cuda_release(cuda, driver) == release
