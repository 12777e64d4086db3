"""NumPy arrays and scalars come back with their bits, dtype, byte order, shape, order and flags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.values import ValueRefused, decode, encode
from tests.unit.protocol.values.equality import assert_same

np: Any = pytest.importorskip("numpy")
hnp: Any = pytest.importorskip("hypothesis.extra.numpy")

ORDERS = st.sampled_from("<>")
PLAIN = st.one_of(
    hnp.boolean_dtypes(),
    ORDERS.flatmap(lambda order: hnp.integer_dtypes(endianness=order)),
    ORDERS.flatmap(lambda order: hnp.unsigned_integer_dtypes(endianness=order)),
    ORDERS.flatmap(lambda order: hnp.floating_dtypes(endianness=order, sizes=(16, 32, 64))),
    ORDERS.flatmap(lambda order: hnp.complex_number_dtypes(endianness=order, sizes=(64, 128))),
    ORDERS.flatmap(lambda order: hnp.datetime64_dtypes(endianness=order)),
    ORDERS.flatmap(lambda order: hnp.timedelta64_dtypes(endianness=order)),
    ORDERS.flatmap(lambda order: hnp.unicode_string_dtypes(endianness=order)),
    hnp.byte_string_dtypes(),
    st.sampled_from(["<M8", "<M8[25s]", "|V5"]).map(np.dtype),
)
EMPTY = st.sampled_from(["<U0", "|S0", "|V0"]).map(np.dtype)
STRUCTS = hnp.array_dtypes(PLAIN, min_size=1, max_size=4, allow_subarrays=True)
NESTED = STRUCTS | hnp.array_dtypes(STRUCTS, max_size=3)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def arrays(draw: Any) -> Any:
    """Any bytes as an array of any dtype and shape, perhaps strided, in Fortran order or read-only."""
    dtype, shape = draw(PLAIN | EMPTY | NESTED), draw(SHAPES)
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    seed = draw(st.binary(min_size=1, max_size=40))
    data = (seed * (size // len(seed) + 1))[:size]
    array = np.ndarray(shape, dtype, buffer=bytearray(data), order=draw(st.sampled_from("CF")))
    change = draw(st.sampled_from(["none", "transposed", "strided", "reversed", "read-only", "broadcast"]))
    if change == "transposed":
        array = array.T
    elif change == "strided" and array.ndim:
        array = array[::2]
    elif change == "reversed" and array.ndim:
        array = array[..., ::-1]
    elif change == "read-only":
        array.flags.writeable = False
    elif change == "broadcast":
        array = np.broadcast_to(array, (2, *array.shape))
    return array


@given(arrays())
@settings(max_examples=200, deadline=None)
def test_an_array_comes_back(array: Any) -> None:
    assert_same(decode(encode(array)), array)


@given(arrays(), st.binary(max_size=7))
@settings(max_examples=100, deadline=None)
def test_an_array_comes_back_from_parts_of_any_kind(array: Any, before: bytes) -> None:
    head, *rest = encode([array, np.arange(1000.0)])
    assert_same(decode([head, *map(bytearray, rest)])[0], array)
    shifted = [memoryview(before + bytes(part))[len(before) :] for part in rest]
    came = decode([head, *shifted])
    assert_same(came[0], array)
    assert came[1].flags.aligned


@given(PLAIN.filter(lambda dtype: dtype.itemsize), st.binary(min_size=64, max_size=64))
@settings(max_examples=100, deadline=None)
def test_a_scalar_comes_back(dtype: Any, data: bytes) -> None:
    if dtype.kind == "U":
        return  # any bytes are no text
    scalar = np.ndarray((), dtype, buffer=(data * 20)[: dtype.itemsize])[()]
    assert_same(decode(encode(scalar)), scalar)


@given(st.text(), st.binary())
def test_text_scalars_keep_their_last_nuls(text: str, data: bytes) -> None:
    for scalar in (np.str_(text + "\0"), np.bytes_(data + b"\0")):
        came = decode(encode({"k": scalar}))["k"]
        assert type(came) is type(scalar)
        assert came == scalar
        assert len(came) == len(scalar)


def test_scalars_are_keys() -> None:
    value = {np.float64(1.5): 1, np.str_("x"): 2, (np.int8(1),): 3}
    came = decode(encode(value))
    assert came == value
    assert [type(key) for key in came] == [np.float64, np.str_, tuple]


@pytest.mark.parametrize("align", [False, True])
def test_structs_keep_offsets_titles_padding_and_alignment(align: bool) -> None:
    layout = {
        "names": ["a", "b"],
        "formats": ["i4", "f8"],
        "offsets": [16, 0],
        "itemsize": 32,
        "titles": ["first", None],
    }
    array = np.frombuffer(bytes(range(96)), np.dtype(layout, align=align))
    came = decode(encode(array))
    assert_same(came, array)
    assert came.dtype.fields["a"] == array.dtype.fields["a"]
    copied = array.copy()
    assert decode(encode(copied)).tobytes() == copied.tobytes()


def test_a_large_array_is_sent_from_its_own_memory_and_read_from_the_parts() -> None:
    array = np.arange(10_000.0)
    _, part = encode(array)
    assert np.shares_memory(np.frombuffer(part, np.float64), array)
    head, _ = encode(array)
    received = bytearray(part)
    came = decode([head, received])
    assert np.shares_memory(np.frombuffer(received, np.float64), came)
    came += 1  # and it is writable
    array.flags.writeable = False
    head, part = encode(array)
    still = bytes(part)
    assert np.shares_memory(np.frombuffer(still, np.float64), decode([head, still]))


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (np.array([None]), "x has the dtype object, which does not travel: give x.tolist()"),
        (np.zeros(2, [("a", object)]), "x has the dtype object"),
        (np.zeros(1, np.longdouble), "x has the dtype float128" if np.longdouble(0).itemsize == 16 else ""),
        (np.longdouble(1), "x has the dtype"),
        (np.ma.array([1]), "x is of type numpy.ma"),
        (np.rec.array([(1,)], dtype=[("a", "i4")]), "x is of type numpy"),
        (np.dtype("f8"), "x is of type numpy"),
        (np.float64, "x is of type type"),
        (
            np.zeros(1, np.dtype("f8", metadata={"a": 1})),
            "x has the dtype float64, which does not travel: it carries metadata",
        ),
        (np.random.default_rng(), "x is of type numpy.random"),
    ],
)
def test_what_cannot_come_back_is_refused(value: Any, line: str) -> None:
    with pytest.raises(ValueRefused) as refused:
        encode(value, "x")
    assert str(refused.value).startswith(line)


def test_a_class_that_claims_to_be_numpys_is_refused() -> None:
    claims = type("ndarray", (np.ndarray,), {"__module__": "numpy"})
    with pytest.raises(ValueRefused):
        encode(np.arange(3).view(claims))
