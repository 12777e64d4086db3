"""The value codec: what travels as `--in`, `--out`, arguments and results.

`encode` makes parts of a value, `decode` makes the value of its parts. What comes back equals what went in and has the
same type; every other value is refused before anything is returned, by one line that names the path to it. There is
no pickle here: reading parts calls nothing but constructors of the types below.

Taken, by their exact types (subclasses are refused):

- None, bool, int of any size, float and complex (by their bits), str (lone surrogates too), bytes, bytearray;
- list, tuple, dict (in its order), set, frozenset, at most 100 deep;
- date, time, datetime with no tzinfo, a `datetime.timezone` or a `zoneinfo.ZoneInfo`, timedelta;
- NumPy arrays and scalars without objects: dtype (structured and datetime64 too), byte order, shape, Fortran order, and
  whether the array is read-only, are kept; strided arrays come back contiguous; long double is refused, because its
  bits differ between machines;
- torch tensors on the CPU that need no gradient: dtype and shape are kept, strided ones come back contiguous;
- pandas DataFrame and Series whose columns are of NumPy, `str`, nullable, categorical, zoned datetime or Arrow dtypes,
  or of dtype object with nothing but str and one kind of missing value;
- pyarrow Table and RecordBatch without extension types.

Aliasing is not kept: a list that stands twice in a value comes back as two lists.

The first part is the head, msgpack; each buffer of 4 KiB or more is a part of its own and is not copied: parts of
`encode` view the memory of the value, so send them before the value changes. `decode` takes over the memory of parts
that are writable (bytearray), and copies read-only ones only where the value must be writable.

This package imports nothing else of ours and by itself no library: it also works where it is loaded by its path, in an
interpreter that has neither gpulayer nor msgpack.
"""

from __future__ import annotations

from .decoding import decode
from .encoding import encode
from .errors import LibraryMissing, ValueDamaged, ValueRefused

__all__ = ["LibraryMissing", "ValueDamaged", "ValueRefused", "decode", "encode"]
