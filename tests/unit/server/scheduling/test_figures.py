"""Figures in reasons: in the units in which people ask, and as makers name their cards."""

from __future__ import annotations

import pytest

from gpulayer.parsing import parse_size
from gpulayer.protocol.types import Device
from gpulayer_server.scheduling import figures

MIB = 2**20


@pytest.mark.parametrize(
    ("card", "reports", "gb"),
    [
        ("GTX 1060", 6_078 * MIB, 6),
        ("RTX 2080 Ti", 11_019 * MIB, 11),
        ("K80", 11_441 * MIB, 12),
        ("T4", 15_843_721_216, 16),
        ("V100", 16_160 * MIB, 16),
        ("A10G", 22_731 * MIB, 24),
        ("L4", 23_034 * MIB, 24),
        ("RTX 4090", 24_564 * MIB, 24),
        ("RTX 5090", 32_607 * MIB, 32),
        ("A100", 42_405_855_232, 40),
        ("A40", 45_634 * MIB, 48),
        ("RTX A6000", 49_140 * MIB, 48),
        ("H100", 81_559 * MIB, 80),
        ("H100 NVL", 95_830 * MIB, 94),
        ("GH200", 97_871 * MIB, 96),
        ("H200", 143_771 * MIB, 141),
        ("B200", 183_359 * MIB, 180),
        ("MI300X", 196_592 * MIB, 192),
        ("A100 1g.5gb", 4_864 * MIB, 5),
        ("A100 3g.20gb", 20_096 * MIB, 20),
    ],
)
def test_a_card_is_what_it_is_sold_as(card: str, reports: int, gb: int):
    assert figures.sold_as(reports) == f"{gb} GB"
    assert figures.is_size(reports, parse_size(f"{gb}GB"))


def test_a_card_is_none_of_the_next_size():
    assert not figures.is_size(11_178 * MIB, parse_size("12GB"))
    assert not figures.is_size(24_564 * MIB, parse_size("32GB"))
    assert figures.sold_as(7 * 10**9 + 10**8) == "7.1 GB"


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (41_000, "41 kB"),
        (999_960_000, "1 GB"),
        (6_200_000_000, "6.2 GB"),
        (40_000_000_000, "40 GB"),
        (1_500_000_000_000, "1.5 TB"),
    ],
)
def test_sizes(amount: int, words: str):
    assert figures.size(amount) == words


def test_gigabytes():
    assert [figures.in_gb(each) for each in (0, 1, 800_000_000, 22_000_000_000)] == [
        "0 GB",
        "less than 0.1 GB",
        "0.8 GB",
        "22 GB",
    ]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("Apple M3 Max", "M3 Max"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA", "NVIDIA"),
        ("", ""),
    ],
)
def test_names(name: str, short: str):
    assert figures.short_name(Device(uuid="x", kind="cuda", index=3, name=name)) == short
    assert figures.placed_name(Device(uuid="x", kind="cuda", index=3, name=name)) == f"cuda:3 {short}".strip()


def test_counts():
    assert [figures.count(each, "slot") for each in (0, 1, 2)] == ["0 slots", "1 slot", "2 slots"]
    assert [figures.cores(each) for each in (1, 0.5, 16)] == ["1 core", "0.5 cores", "16 cores"]
    assert figures.tally(["a", "b", "a"]) == "2 × a, b"
