"""Large parts of arguments and results."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from gpulayer_worker.runner import blobs, wire


def test_results_that_can_not_travel_leave_no_files(tmp_path: Path) -> None:
    results = blobs.Results(str(tmp_path), 0)
    data = os.urandom(3 << 20)
    assert results.put(memoryview(data)) == hashlib.sha256(data).hexdigest()
    (place,) = results.taken()
    assert Path(place.path).read_bytes() == data
    results.put(memoryview(b"abc"))
    results.abandon()
    assert os.listdir(tmp_path) == [os.path.basename(place.path)]


def test_results_that_the_disk_has_no_room_for_are_refused(tmp_path: Path) -> None:
    results = blobs.Results(str(tmp_path), reserve_bytes=1 << 60)
    with pytest.raises(OSError, match="needs 2 MB on the worker's disk, which has 0 MB to spare"):
        results.put(memoryview(bytes(2_000_000)))
    assert os.listdir(tmp_path) == []


def test_shared_values_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    places = {}
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 40)
        places[name] = wire.BlobPlace(name, str(tmp_path / name), 0, 40)
    made: list[str] = []

    def unpack(data: Any, _places: Any) -> str:
        made.append(bytes(data[:1]).decode())
        return made[-1]

    refs = blobs.Refs(unpack, limit_bytes=100)
    assert [refs.get(places, name, 40) for name in "abacab"] == list("abacab")
    assert made == ["a", "b", "c", "b"]
    with pytest.raises(ValueError, match="did not come with the call"):
        refs.get(places, "a" * 64, 1)
