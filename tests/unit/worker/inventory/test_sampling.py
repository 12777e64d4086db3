"""Samples of the machine, and which are worth a message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpulayer.protocol.types import DeviceSample, Process, Sample
from gpulayer_worker.inventory.limits import Limits, Memory
from gpulayer_worker.inventory.sampling import DeviceUse, Sampler, noticeable
from gpulayer_worker.inventory.strangers import Foreigners

GB = 1 << 30


class Strangers:
    """Processes below 100 are ours."""

    def seen(self, pid: int, held: int | None) -> Process | None:
        return None if pid < 100 else Process(pid=pid, name="python", user="alice", bytes=held)


def limited(cores: float, used_s: list[float]) -> Any:
    """Limits of a group whose CPU time is known."""
    return SimpleNamespace(
        cores=lambda: cores,
        cpu_limited=lambda: True,
        cpu_used_s=lambda: used_s.pop(0),
        memory=lambda: Memory(total_bytes=8 * GB, used_bytes=2 * GB, free_bytes=6 * GB),
    )


def test_a_sample_of_this_machine_is_whole(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path, Strangers(), Limits())
    first, second = sampler.take(0.0), sampler.take(1.0)
    assert first.cpu is None
    assert second.cpu is not None
    assert 0 <= second.cpu <= 1
    assert first.ram_used_bytes is not None
    assert first.ram_free_bytes is not None
    assert first.disk_free_bytes is not None
    assert first.disk_total_bytes is not None
    assert 0 < first.disk_free_bytes <= first.disk_total_bytes
    assert second.received_bps is not None


def test_cpu_is_of_what_the_group_is_granted(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path, Strangers(), limited(0.5, [10.0, 10.25, 30.0]))
    assert [sampler.take(float(now)).cpu for now in range(3)] == [None, 0.5, 1.0]


def test_rates_are_of_all_interfaces_but_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = [(0, 0), (2000, 500), (0, 0)]

    def counters(pernic: bool) -> dict[str, Any]:
        received, sent = counted.pop(0)
        one = SimpleNamespace(bytes_recv=received, bytes_sent=sent)
        return {"lo": SimpleNamespace(bytes_recv=10**9, bytes_sent=10**9), "eth0": one, "eth1": one}

    monkeypatch.setattr(psutil, "net_io_counters", counters)
    sampler = Sampler(tmp_path, Strangers(), limited(1, [0.0] * 3))
    samples = [sampler.take(now) for now in (0.0, 2.0, 4.0)]
    assert [(sample.received_bps, sample.sent_bps) for sample in samples] == [(None, None), (2000, 500), (0, 0)]


def test_devices_carry_who_is_none_of_ours(tmp_path: Path) -> None:
    use = DeviceUse(uuid="GPU-1", used_bytes=5, free_bytes=6, processes=((5, 1), (4121, 2)))
    [device] = Sampler(tmp_path, Strangers(), limited(1, [0.0])).take(0.0, [use]).devices
    assert device.foreign == (Process(pid=4121, name="python", user="alice", bytes=2),)
    assert (device.used_bytes, device.free_bytes, device.utilisation) == (5, 6, None)


# ---------------------------------------------------------------- what is worth a message

DEVICE = DeviceSample(uuid="a", used_bytes=GB, free_bytes=GB, utilisation=0.5, temperature_c=50, power_w=100)
SAMPLE = Sample(cpu=0.5, ram_used_bytes=GB, ram_free_bytes=GB, received_bps=1e6, sent_bps=0.0, devices=(DEVICE,))


@pytest.mark.parametrize(
    ("change", "worth"),
    [
        ({}, False),
        ({"cpu": 0.51}, False),
        ({"cpu": 0.6}, True),
        ({"cpu": None}, True),
        ({"ram_free_bytes": GB + (1 << 20)}, False),
        ({"ram_free_bytes": GB // 2}, True),
        ({"received_bps": 1.1e6}, False),
        ({"received_bps": 2e6}, True),
        ({"devices": ()}, True),
    ],
)
def test_what_a_person_would_see_is_sent(change: dict[str, Any], worth: bool) -> None:
    assert noticeable(SAMPLE, replace(SAMPLE, **change)) == worth


@pytest.mark.parametrize(
    ("change", "worth"),
    [
        ({"used_bytes": GB + 1}, False),
        ({"used_bytes": 2 * GB}, True),
        ({"utilisation": 0.9}, True),
        ({"temperature_c": 51}, False),
        ({"power_w": 104}, False),
        ({"power_w": 120}, True),
        ({"uuid": "b"}, True),
        ({"foreign": (Process(pid=1, bytes=5),)}, True),
    ],
)
def test_so_it_is_with_devices(change: dict[str, Any], worth: bool) -> None:
    assert noticeable(SAMPLE, replace(SAMPLE, devices=(replace(DEVICE, **change),))) == worth


part = st.one_of(st.none(), st.floats(0, 1))


@given(part, part)
def test_any_two_can_be_compared_and_none_differs_from_itself(one: float | None, other: float | None) -> None:
    a, b = replace(SAMPLE, cpu=one), replace(SAMPLE, cpu=other)
    assert noticeable(a, b) == noticeable(b, a)
    assert not noticeable(a, a)


# ---------------------------------------------------------------- strangers


def foreigners(folder: Path, *, holds: bool = False) -> Foreigners:
    return Foreigners(folder, lambda: holds, key="the-key")


def test_what_our_keeper_started_is_ours_and_so_are_its_children(tmp_path: Path) -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'], env={})"
    ours = subprocess.Popen(
        [sys.executable, "-c", nested],
        env={**os.environ, "GPULAYER_KEEPER": "the-key"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with ours:
        assert ours.stdout is not None
        ours.stdout.readline()
        [child] = psutil.Process(ours.pid).children()
        strangers = foreigners(tmp_path)
        assert strangers.seen(ours.pid, 1) is None
        assert strangers.seen(child.pid, 1) is None
        ours.communicate(b"\n")


def test_anybody_else_is_named_with_the_user(tmp_path: Path) -> None:
    me = psutil.Process()
    strangers = foreigners(tmp_path)
    assert strangers.seen(me.pid, 7) == Process(pid=me.pid, name=me.name(), user=me.username(), bytes=7)
    assert strangers.seen(me.pid, 9) == Process(pid=me.pid, name=me.name(), user=me.username(), bytes=9)


def test_the_keeper_that_the_folder_names_is_ours_with_all_below_it(tmp_path: Path) -> None:
    (tmp_path / "keeper.json").write_text(f'{{"pid": {os.getpid()}}}')
    assert foreigners(tmp_path).seen(os.getpid(), 7) is None


def test_one_that_cannot_be_seen_is_foreign_only_where_nothing_of_ours_runs(tmp_path: Path) -> None:
    nobody = 2**22 + 1
    assert foreigners(tmp_path).seen(nobody, 7) == Process(pid=nobody, bytes=7)
    assert foreigners(tmp_path, holds=True).seen(nobody, 7) is None
