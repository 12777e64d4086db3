"""torch tensors on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import tags
from .arrays import checked
from .decoding import library
from .errors import LibraryMissing, ValueDamaged, ValueRefused
from .fields import exactly, fields

if TYPE_CHECKING:
    from .decoding import Decoder
    from .encoding import Encoder, Writer

_DTYPES = frozenset(
    [
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    ]
)


def writer(kind: type[Any]) -> Writer | None:
    """The writer of a torch type."""
    return _write_tensor if kind is library("torch").Tensor else None


def _write_tensor(encoder: Encoder, value: Any) -> Any:
    torch = library("torch")
    encoder.refuse_as_key(value)
    _refuse(value, torch)
    try:
        library("numpy")  # torch hands its memory out through it only
    except LibraryMissing as missing:
        raise ValueRefused("is a torch.Tensor, which cannot be sent without NumPy: install numpy here") from missing
    name = str(value.dtype).removeprefix("torch.")
    plain = value.resolve_conj().resolve_neg().contiguous()
    if plain.numel() == 0:
        return {tags.TENSOR: [name, list(value.shape), b""]}
    # As bytes, since NumPy knows no bfloat16. `as_strided`: a dimension of one item may have any stride.
    data = memoryview(plain.as_strided((plain.numel(),), (1,)).view(torch.uint8).numpy())
    return {tags.TENSOR: [name, list(value.shape), encoder.buffer(data)]}


def _refuse(value: Any, torch: Any) -> None:
    """Raise for a tensor that is more than its numbers."""
    if value.requires_grad:
        give = "x.detach()" if value.device.type == "cpu" else "x.detach().cpu()"
        raise ValueRefused(f"is a torch.Tensor that requires a gradient, which does not travel: give {give}")
    if value.is_nested:
        raise ValueRefused("is a nested torch.Tensor, which does not travel: give list(x.unbind())")
    if value.device.type == "meta":
        raise ValueRefused("is a torch.Tensor on the device meta, which has no numbers: make it there")
    if value.device.type != "cpu":
        raise ValueRefused(f"is a torch.Tensor on the device {value.device}, not on the CPU: give x.cpu()")
    if value.layout != torch.strided:
        raise ValueRefused(f"is a torch.Tensor of the layout {value.layout}, which does not travel: give x.to_dense()")
    if str(value.dtype).removeprefix("torch.") not in _DTYPES:
        raise ValueRefused(
            f"is a torch.Tensor of the dtype {value.dtype}, which does not travel: give x.to() of another"
        )


def _read_tensor(decoder: Decoder, field: Any) -> Any:
    torch = library("torch")
    name, shape, buffer = fields(field, str, list, None)
    if name not in _DTYPES:
        raise ValueDamaged("an unknown dtype of a tensor")
    dtype = getattr(torch, exactly(name, str), None)
    if dtype is None:
        raise LibraryMissing(f"the value holds a torch.{name} tensor: install a newer torch there")
    data = checked(decoder.buffer(buffer), shape, torch.empty(0, dtype=dtype).element_size())
    view = memoryview(data)
    if view.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)
    if flat.data_ptr() % 16:  # a view by the wider dtype needs memory that suits it
        flat = flat.clone()
    return flat.view(dtype).reshape(shape)


READERS = {tags.TENSOR: _read_tensor}
