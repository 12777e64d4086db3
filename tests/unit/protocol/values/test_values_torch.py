"""torch tensors on the CPU come back with their bits, dtype and shape."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.values import ValueRefused, decode, encode
from tests.unit.protocol.values.equality import assert_same

torch: Any = pytest.importorskip("torch")

DTYPES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"),
]


@st.composite
def tensors(draw: Any) -> Any:
    """Any bytes as a tensor of any dtype and shape, perhaps strided."""
    dtype = getattr(torch, draw(st.sampled_from([name for name in DTYPES if hasattr(torch, name)])))
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    tensor = torch.empty(shape, dtype=dtype)
    size = tensor.numel() * tensor.element_size()
    if size:
        data = bytearray(draw(st.binary(min_size=1, max_size=9)) * size)[:size]
        if dtype is torch.bool:
            data = bytearray(byte & 1 for byte in data)
        tensor = torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
    change = draw(st.sampled_from(["none", "transposed", "strided", "expanded"]))
    if change == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, 1)
    if change == "strided" and tensor.dim():
        return tensor[::2]
    return tensor.expand(2, *tensor.shape) if change == "expanded" else tensor


@given(tensors())
@settings(max_examples=150, deadline=None)
def test_a_tensor_comes_back(tensor: Any) -> None:
    parts = encode({"t": [tensor]})
    assert_same(decode(parts), {"t": [tensor]})
    assert_same(decode([bytes(part) for part in parts]), {"t": [tensor]})


def test_a_large_tensor_is_sent_from_its_own_memory_and_read_from_the_parts() -> None:
    tensor = torch.arange(10_000, dtype=torch.bfloat16)
    head, part = encode(tensor)
    received = bytearray(part)
    came = decode([head, received])
    received[:2] = b"\x80\x3f"
    assert came[0] == 1
    tensor[0] = 7
    assert bytes(part[:2]) == bytes(tensor[:1].view(torch.uint8).tolist())


def test_a_state_dict_travels_as_a_dict() -> None:
    state = dict(torch.nn.Linear(3, 2).state_dict())
    assert_same(decode(encode(state)), state)


def test_conjugates_come_back_as_what_they_show() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert torch.equal(decode(encode(tensor)), tensor.resolve_conj())


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (
            lambda: torch.ones(1, requires_grad=True),
            "x is a torch.Tensor that requires a gradient, which does not travel: give x.detach()",
        ),
        (lambda: torch.ones(1, requires_grad=True) * 2, "x is a torch.Tensor that requires a gradient"),
        (
            lambda: torch.nn.Parameter(torch.ones(1)),
            "x is of type torch.nn.parameter.Parameter, which does not travel: give x.detach().cpu()",
        ),
        (lambda: torch.empty(1, device="meta"), "x is a torch.Tensor on the device meta"),
        (
            lambda: torch.eye(2).to_sparse(),
            "x is a torch.Tensor of the layout torch.sparse_coo, which does not travel: give x.to_dense()",
        ),
        (
            lambda: torch.nn.Linear(1, 1),
            "x is of type torch.nn.modules.linear.Linear, which does not travel: give dict(x.state_dict())",
        ),
        (lambda: torch.float32, "x is of type torch.dtype"),
        (lambda: torch.Size([1]), "x is of type torch.Size, which does not travel: give tuple(x)"),
        (lambda: {torch.ones(1): 1}, "list(x)[0] is of type torch.Tensor"),
    ],
)
def test_what_cannot_come_back_is_refused(make: Any, line: str) -> None:
    with pytest.raises(ValueRefused) as refused:
        encode(make(), "x")
    assert str(refused.value).startswith(line)


def test_without_numpy_a_tensor_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ValueRefused, match="install numpy"):
        encode(torch.ones(1), "x")


@pytest.mark.gpu
def test_a_tensor_on_a_gpu_is_refused() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with pytest.raises(ValueRefused, match=r"on the device cuda:0, not on the CPU: give x\.cpu\(\)"):
        encode(torch.ones(1, device="cuda"), "x")
