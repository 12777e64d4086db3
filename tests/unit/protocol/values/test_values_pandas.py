"""pandas frames, series and indexes come back with dtypes, values, labels and attributes; the rest is refused."""

from __future__ import annotations

import datetime
import zoneinfo
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.values import ValueRefused, decode, encode
from tests.unit.protocol.values.equality import assert_same

pd: Any = pytest.importorskip("pandas")
np: Any = pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

MODERN = int(pd.__version__.partition(".")[0]) >= 3
NUMPY = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
MOMENTS = [f"{kind}8[{unit}]" for kind in "mM" for unit in ("s", "ms", "us", "ns")]
MASKED = ["Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64", "boolean"]
TEXTS = [pd.StringDtype("python"), pd.StringDtype("pyarrow")]
if MODERN:
    TEXTS += [pd.StringDtype("python", na_value=np.nan), pd.StringDtype("pyarrow", na_value=np.nan)]
ZONES = st.sampled_from(
    [datetime.timezone.utc, zoneinfo.ZoneInfo("Europe/Berlin"), datetime.timezone(datetime.timedelta(hours=2))]
)
SMALL = st.integers(0, 100)


def raw(draw: Any, dtype: str, rows: int) -> Any:
    """Any bytes as numbers: NaNs of all kinds, NaT, the largest and the smallest."""
    size = np.dtype(dtype).itemsize * rows
    data = draw(st.binary(min_size=size, max_size=size))
    return np.frombuffer(data, dtype).copy() if dtype != "bool" else np.array([byte & 1 for byte in data], bool)


def categories(draw: Any, rows: int) -> Any:
    kinds: list[st.SearchStrategy[Any]] = [
        st.text(max_size=3),
        SMALL,
        st.floats(0, 1),
        st.datetimes(datetime.datetime(2000, 1, 1), datetime.datetime(2100, 1, 1)),
    ]
    labels = draw(st.lists(draw(st.sampled_from(kinds)), unique=True, max_size=4))
    codes = draw(st.lists(st.integers(-1, len(labels) - 1), min_size=rows, max_size=rows))
    return pd.Categorical.from_codes(codes, categories=pd.Index(labels), ordered=draw(st.booleans()))


@st.composite
def columns(
    draw: Any,
    rows: int,
    kinds: tuple[str, ...] = ("numpy", "moments", "zoned", "masked", "text", "objects", "categories", "arrow"),
) -> Any:
    kind = draw(st.sampled_from(kinds))
    if kind == "numpy":
        return raw(draw, draw(st.sampled_from(NUMPY)), rows)
    if kind == "moments":
        return raw(draw, draw(st.sampled_from(MOMENTS)), rows)
    if kind == "zoned":
        unit = draw(st.sampled_from(["s", "ms", "us", "ns"]))
        seconds = draw(st.lists(st.none() | st.integers(-(10**9), 4 * 10**9), min_size=rows, max_size=rows))
        naive = np.array(["NaT" if item is None else item for item in seconds], "M8[s]").astype(f"M8[{unit}]")
        return pd.DatetimeIndex(naive).tz_localize("UTC").tz_convert(draw(ZONES)).array
    if kind == "categories":
        return categories(draw, rows)
    if kind == "masked":
        dtype = draw(st.sampled_from(MASKED))
        items = draw(
            st.lists(st.none() | (st.booleans() if dtype == "boolean" else SMALL), min_size=rows, max_size=rows)
        )
        array = pd.array(items, dtype=dtype)
        return array / 0 * 1 if dtype.startswith("Float") and draw(st.booleans()) else array
    texts = draw(st.lists(st.none() | st.text(max_size=5), min_size=rows, max_size=rows))
    if kind == "text":
        return pd.array(texts, dtype=draw(st.sampled_from(TEXTS)))
    if kind == "arrow":
        return pd.array(
            draw(st.lists(st.none() | SMALL, min_size=rows, max_size=rows)),
            dtype=draw(st.sampled_from(["int64[pyarrow]", "double[pyarrow]"])),
        )
    missing = draw(st.sampled_from([None, float("nan")]))
    array = np.empty(rows, object)
    array[:] = [missing if item is None else item for item in texts]
    return array


@st.composite
def indexes(draw: Any, rows: int) -> Any:
    name = draw(st.none() | st.text(max_size=3) | st.integers() | st.tuples(st.integers(), st.text(max_size=2)))
    kind = draw(st.sampled_from(["range", "column", "multi"]))
    if kind == "range":
        start, step = draw(st.integers(-9, 9)), draw(st.sampled_from([-3, -1, 1, 2]))
        return pd.RangeIndex(start, start + step * rows, step, name=name)
    if kind == "multi":
        levels = [plain_index(draw(columns(rows)), None) for _ in range(draw(st.integers(1, 3)))]
        return pd.MultiIndex.from_arrays(levels, names=[name, *[None] * (len(levels) - 1)])
    return plain_index(draw(columns(rows)), name)


def plain_index(array: Any, name: Any) -> Any:
    if array.dtype == "float16":  # no index has it
        array = array.astype("float64")
    return pd.Index(array, dtype=array.dtype, name=name)


@st.composite
def frames(draw: Any) -> Any:
    rows = draw(st.integers(0, 5))
    labels = draw(
        st.lists(
            st.text(max_size=3) | st.integers(-9, 9) | st.tuples(st.integers(0, 3), st.text(max_size=2)),
            unique=True,
            max_size=4,
        )
    )
    arrays = [draw(columns(rows)) for _ in labels]
    index = draw(indexes(rows))
    frame = pd.DataFrame(
        {place: pd.Series(array, dtype=array.dtype) for place, array in enumerate(arrays)}, index=range(rows)
    )
    frame.index = index
    if all(type(label) is tuple for label in labels) and labels and draw(st.booleans()):
        frame.columns = pd.MultiIndex.from_tuples(labels)
    else:
        array = np.empty(len(labels), object)
        array[:] = labels
        dtype = object if draw(st.booleans()) or any(type(label) is tuple for label in labels) else None
        frame.columns = pd.Index(array, dtype=dtype, name=draw(st.none() | st.text(max_size=2)), tupleize_cols=False)
    if draw(st.booleans()):
        frame.attrs["unit"] = {"a": [1.5, None]}
    return frame


@given(frames())
@settings(max_examples=120, deadline=None)
def test_a_frame_comes_back(frame: Any) -> None:
    assert_same(decode([bytes(part) for part in encode({"f": frame})])["f"], frame)


@given(st.integers(0, 6).flatmap(lambda rows: st.tuples(columns(rows), indexes(rows))), st.none() | st.text(max_size=3))
@settings(max_examples=120, deadline=None)
def test_a_series_and_an_index_come_back(drawn: tuple[Any, Any], name: Any) -> None:
    array, index = drawn
    series = pd.Series(array, index=index, dtype=array.dtype, name=name)
    assert_same(decode(encode(series)), series)
    assert_same(decode(encode(index)), index)


def test_a_frame_that_came_back_can_be_changed() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "s": ["x", "y"], "b": [True, False]})
    came = decode([bytes(part) for part in encode(frame)])
    came.loc[0, "a"] = 5.0
    came["a"] += 1
    came.loc[1, "s"] = "z"
    came.iloc[0, 2] = False
    assert came.to_dict("list") == {"a": [6.0, 3.0], "s": ["x", "z"], "b": [False, False]}


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame(),
        pd.DataFrame(index=[1, 2]),
        pd.DataFrame(columns=["a"]),
        pd.DataFrame({"a": [1, 2]}, index=["x", "x"]),
        pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False),
        pd.DataFrame({"a": ["x", "y"], "b": [1, 2]}).set_index(["a", "b"]),
        pd.DataFrame([[1, 2]], columns=pd.Index([0.5, 1.5], name="n")),
        pd.DataFrame({"a": range(9)})[::-2],
        pd.DataFrame(np.asfortranarray(np.ones((3, 4)))).T,
    ],
)
def test_frames_of_odd_shapes_come_back(frame: Any) -> None:
    assert_same(decode(encode(frame)), frame)
    pd.testing.assert_frame_equal(decode(encode(frame)), frame, check_exact=True)


def daily() -> Any:
    return pd.date_range("2026-01-01", periods=2)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: pd.DataFrame({"a": [(1, 2)]}),
            "x['a'] has the dtype object with values of type tuple, which does not travel: give",
        ),
        (lambda: pd.DataFrame({"a": [{}]}), "x['a'] has the dtype object with values of type dict"),
        (lambda: pd.DataFrame({"a": [{1}]}), "x['a'] has the dtype object with values of type set"),
        (lambda: pd.DataFrame({"a": [1, "x"]}), "x['a'] has the dtype object with values of type int"),
        (lambda: pd.DataFrame({"a": pd.Series(["x", None, np.nan], dtype=object)}), "x['a'] has the dtype object"),
        (
            lambda: pd.DataFrame({"a": pd.Series([np.str_("x")], dtype=object)}),
            "x['a'] has the dtype object with values of type numpy.str_",
        ),
        (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), "x has more than one column 'a'"),
        (lambda: pd.DataFrame({"a": [1, 2]}, index=daily()), "x.index has the frequency D"),
        (lambda: pd.DataFrame([[1, 2]], columns=daily()), "x.columns has the frequency D"),
        (lambda: pd.MultiIndex.from_product([[1], daily()]), "x.levels[1] has the frequency D"),
        (lambda: pd.DataFrame({"p": pd.period_range("2026", periods=2)}), "x['p'] has the dtype period"),
        (lambda: pd.Series(pd.arrays.SparseArray([1, 0])), "x has the dtype Sparse"),
        (lambda: pd.Series(pd.interval_range(0, 2)), "x has the dtype interval"),
        (lambda: pd.Series([1 + 2j]), "x has the dtype complex128"),
        (lambda: pd.Series(np.array([1], ">i4")), "x has the dtype >i4"),
        (lambda: pd.Series(["\ud800"], dtype=object), "x holds text with lone surrogates"),
        (lambda: pd.Series([datetime.date(2026, 1, 1)]), "x has the dtype object with values of type datetime.date"),
        (lambda: pd.Series([1], index=pd.Index([("a", 1)], tupleize_cols=False)), "x.index has the dtype object"),
        (lambda: pd.Series([1], name=("a", len)), "x.name[1] is of type builtin_function_or_method"),
        (lambda: pd.DataFrame({len: [1]}), "list(x.columns)[0] is of type builtin_function_or_method"),
        (lambda: pd.Timestamp(0), "x is of type pandas"),
        (lambda: pd.NaT, "x is of type pandas"),
        (lambda: pd.NA, "x is of type pandas"),
        (lambda: pd.period_range("2026", periods=2), "x is of type pandas"),
        (lambda: type("Frame", (pd.DataFrame,), {})({"a": [1]}), "x is of type "),
    ],
)
def test_what_cannot_come_back_is_refused(make: Any, line: str) -> None:
    with pytest.raises(ValueRefused) as refused:
        encode(make(), "x")
    assert str(refused.value).startswith(line)
    assert ": " in str(refused.value)
    assert "\n" not in str(refused.value)


def test_attributes_of_a_frame_that_do_not_travel_are_named() -> None:
    frame = pd.DataFrame({"a": [1]})
    frame.attrs["f"] = len
    with pytest.raises(ValueRefused, match=r"^x\.attrs\['f'\] is of type"):
        encode(frame, "x")


def test_without_pyarrow_a_frame_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ValueRefused, match="install pyarrow"):
        encode(pd.DataFrame({"a": [1]}), "x")
