"""The format of a head.

A head is the msgpack array `[VERSION, sizes of the other parts in bytes, tree]`. None, bool, int (64 bits), float, str,
bytes and list stand in a tree as themselves. Any other value is a map of one entry: its tag below, and what its reader
needs. A *buffer* is the bytes themselves, or, from `LARGE_BYTES` on, the number of the part that holds them; every part
is used once.

============  ===========================================================================================
tag           holds
============  ===========================================================================================
INT           bytes, two's complement, little-endian
TEXT          bytes, UTF-8 with surrogates passed through
BYTES         the number of a part
BYTEARRAY     a buffer
COMPLEX       [real, imaginary]
TUPLE, SET,   the list of items
FROZENSET
DICT          [list of keys, list of values]
DATE          [year, month, day]
TIME          [hour, minute, second, microsecond, fold, zone]
DATETIME      [year, month, day, hour, minute, second, microsecond, fold, zone]
TIMEDELTA     [days, seconds, microseconds]
NDARRAY       [dtype, shape, Fortran order?, writable?, buffer]; dtypes: `arrays.describe`
SCALAR        [dtype, buffer]
SCALAR_TEXT   str or bytes: `numpy.str_`, `numpy.bytes_`
TENSOR        [dtype's name, shape, buffer]
TABLE, BATCH  [number of rows, buffer: Arrow IPC stream]
INDEX         `["range", start, stop, step, name]`, `["multi", levels, codes, names]`, `["labels", labels, name]` or
              `["column", kind, number of rows, buffer: Arrow IPC stream, name]`
FRAME         [index, columns, kinds, buffer: Arrow IPC stream, attrs, doubled labels allowed?]
SERIES        [index, name, kind, buffer: Arrow IPC stream, attrs, doubled labels allowed?]
============  ===========================================================================================

A zone is None, `["offset", days, seconds, microseconds, name or None]`, `["zone", key]` or `["pytz", key]`.
Kinds of columns: `columns.py`.
"""

from __future__ import annotations

VERSION = 1
LARGE_BYTES = 4096  # smaller buffers cost less inside the head than as parts of their own
MAX_DEPTH = 100  # of containers in one another
MAX_NESTING = 3 * MAX_DEPTH + 16  # of msgpack arrays and maps: a dict is a map that holds an array of two arrays

INT = 1
TEXT = 2
BYTES = 3
BYTEARRAY = 4
COMPLEX = 5
TUPLE = 6
SET = 7
FROZENSET = 8
DICT = 9
DATE = 10
TIME = 11
DATETIME = 12
TIMEDELTA = 13
NDARRAY = 20
SCALAR = 21
SCALAR_TEXT = 22
TENSOR = 30
TABLE = 40
BATCH = 41
FRAME = 50
SERIES = 51
INDEX = 52
