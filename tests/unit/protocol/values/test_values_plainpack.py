"""Heads without the msgpack library: the same bytes, and the package loaded by its path in a bare interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpulayer.protocol.values
from gpulayer.protocol.values import ValueDamaged, decode, encode, heads, plainpack
from tests.unit.protocol.values.equality import assert_same
from tests.unit.protocol.values.test_values_builtin import VALUES

PACKAGE = Path(gpulayer.protocol.values.__file__).parent
EDGES = [
    0,
    -1,
    -32,
    -33,
    127,
    128,
    255,
    256,
    -128,
    -129,
    1 << 15,
    1 << 16,
    -(1 << 15) - 1,
    1 << 32,
    -(1 << 31) - 1,
    (1 << 64) - 1,
    -(1 << 63),
]
TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.sampled_from(EDGES)
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from([15, 16, 31, 32, 255, 256, 65535, 65536]).map(lambda size: "x" * size)
    | st.sampled_from([255, 256, 65535, 65536]).map(bytes)
    | st.sampled_from([15, 16, 65535, 65536]).map(lambda size: [None] * size),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.integers(0, 200), inner, max_size=2),
    max_leaves=10,
)


@given(TREES)
@settings(max_examples=80, deadline=None)
def test_plain_python_writes_the_librarys_bytes_and_reads_them(tree: Any) -> None:
    data = plainpack.pack(tree)
    assert data == msgpack.packb(tree)
    assert plainpack.pack(plainpack.unpack(data, dict)) == data


@given(VALUES)
@settings(max_examples=50, deadline=None)
def test_values_travel_without_the_library(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "_library", lambda: None)
        parts = encode(value)
        assert_same(decode(parts), value)
    assert_same(decode(parts), value)


@given(st.binary(max_size=100))
@settings(max_examples=150, deadline=None)
def test_random_heads_without_the_library(data: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "_library", lambda: None)
        try:
            decode([b"\x93\x01\x90" + data])
        except ValueDamaged as damaged:
            said = str(damaged)
        else:
            said = "a value"
    assert "\n" not in said


@pytest.mark.parametrize(
    "data",
    [b"\x91" * 2000, b"\xdd\xff\xff\xff\xff", b"\xc1", b"\xd4\x01\x00", b"\xdb\xff\xff\xff\xff", b"\x01\x02", b""],
)
def test_what_is_no_head_is_damage(data: bytes) -> None:
    with pytest.raises(ValueDamaged):
        plainpack.unpack(data, dict)


def test_the_package_works_by_its_path_in_an_interpreter_with_nothing_installed() -> None:
    program = """
import importlib.util, json, sys
folder = sys.argv[1]
spec = importlib.util.spec_from_file_location("by_path", folder + "/__init__.py", submodule_search_locations=[folder])
package = sys.modules["by_path"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
value = {"a": [1, 2.5, (3, {4})], "b": b"x" * 5000, 1 << 80: None}
parts = package.encode(value)
assert package.decode(parts) == value
try:
    package.encode([len])
except package.ValueRefused as refused:
    line = str(refused)
loaded = sorted({name.partition(".")[0] for name in sys.modules})
print(json.dumps({"parts": [bytes(part).hex() for part in parts], "line": line, "loaded": loaded}))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(PACKAGE)], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert not {"msgpack", "numpy", "pandas", "pyarrow", "torch", "gpulayer"} & set(told["loaded"])
    assert decode([bytes.fromhex(part) for part in told["parts"]]) == {
        "a": [1, 2.5, (3, {4})],
        "b": b"x" * 5000,
        1 << 80: None,
    }
    assert told["line"].startswith("value[0] is of type ")


def test_importing_and_plain_values_load_no_library() -> None:
    program = (
        "import sys; from gpulayer.protocol.values import encode, decode; decode(encode({'a': [1]}));"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"numpy", "pandas", "pyarrow", "torch", "tornado", "msgspec"} & set(done.stdout.split())
