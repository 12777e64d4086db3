"""Packs: what goes in comes out, and nothing else does."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.source import PackError, SourceChanged, iter_pack, read_pack, write_pack
from gpulayer.source.pack import CHUNK_BYTES, MAGIC

contents = st.lists(st.binary(max_size=300) | st.integers(0, 300_000).map(lambda size: b"\x07" * size), max_size=6)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def packed(*blobs: bytes) -> bytes:
    return b"".join(iter_pack((digest(blob), io.BytesIO(blob)) for blob in blobs))


def unpacked(data: bytes) -> list[bytes]:
    result = []
    for name, size, chunks in read_pack(io.BytesIO(data)):
        blob = b"".join(chunks)
        assert (digest(blob), len(blob)) == (name, size)
        result.append(blob)
    return result


@settings(deadline=None)
@given(contents)
def test_round_trip(blobs: list[bytes]) -> None:
    assert unpacked(packed(*blobs)) == blobs


@settings(deadline=None)
@given(contents)
def test_writing_and_iterating_give_the_same_bytes(blobs: list[bytes]) -> None:
    out = io.BytesIO()
    written = write_pack([(digest(blob), io.BytesIO(blob)) for blob in blobs], out)
    assert out.getvalue() == packed(*blobs)
    assert written == len(out.getvalue())


@settings(deadline=None)
@given(contents, st.data())
def test_any_truncation_is_found(blobs: list[bytes], data: st.DataObject) -> None:
    whole = packed(*blobs)
    with pytest.raises(PackError, match="send it again"):
        unpacked(whole[: data.draw(st.integers(0, len(whole) - 1))])


@settings(deadline=None)
@given(contents.filter(any), st.data())
def test_any_flipped_byte_is_found(blobs: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(packed(*blobs))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PackError):
        unpacked(bytes(raw))


@settings(deadline=None)
@given(st.binary(max_size=100))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(PackError):
        unpacked(data)
    with pytest.raises(PackError):
        unpacked(MAGIC + data)


def test_files_are_read_from_disk_and_streams_from_where_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "a file\nwith a break"
    path.write_bytes(b"on disk")
    stream = io.BytesIO(b"skipped, sent")
    stream.seek(9)
    out = io.BytesIO()
    write_pack([(digest(b"on disk"), path), (digest(b"on disk"), str(path)), (digest(b"sent"), stream)], out)
    assert unpacked(out.getvalue()) == [b"on disk", b"on disk", b"sent"]


@pytest.mark.parametrize("now", [b"other b", b"grown longer", b"cut", b""])
def test_a_file_that_is_not_what_was_scanned_is_not_sent_whole(tmp_path: Path, now: bytes) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(now)
    out = io.BytesIO()
    with pytest.raises(SourceChanged, match=r"a\.py changed while it was sent; run it again"):
        write_pack([(digest(b"what it"), path)], out)
    with pytest.raises(PackError):
        unpacked(out.getvalue())


def test_memory_stays_bounded_and_small_blobs_share_a_piece(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(bytes(3_000_000))
    pieces = list(iter_pack([(digest(bytes(3_000_000)), path)]))
    assert max(map(len, pieces)) < 2 * CHUNK_BYTES
    for _, _, chunks in read_pack(io.BytesIO(b"".join(pieces))):
        assert max(len(chunk) for chunk in chunks) <= CHUNK_BYTES
    small = [b"%d" % number for number in range(1000)]
    assert len(list(iter_pack((digest(blob), io.BytesIO(blob)) for blob in small))) == 1


def test_chunks_that_were_not_taken_are_read_and_checked() -> None:
    blobs = [b"a" * 200_000, b"b", b"c" * 70_000]
    names = []
    for name, _, chunks in read_pack(io.BytesIO(packed(*blobs))):
        next(chunks)
        names.append(name)
    assert names == [digest(blob) for blob in blobs]
    broken = bytearray(packed(*blobs))
    broken[60] ^= 1
    pack = read_pack(io.BytesIO(bytes(broken)))
    next(pack)
    with pytest.raises(PackError, match="other bytes than its digest says"):
        next(pack)


def test_a_stream_that_gives_little_at_a_time_is_read_to_its_end() -> None:
    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size, 3) if size is not None and size > 0 else size)

    (blob,) = (b"".join(chunks) for _, _, chunks in read_pack(Dripping(packed(b"drop by drop"))))
    assert blob == b"drop by drop"


def test_what_follows_the_end_is_refused() -> None:
    with pytest.raises(PackError, match="follows the end"):
        unpacked(packed(b"a") + b"x")


def test_the_end_mark_counts() -> None:
    two, one = packed(b"a", b"b"), packed(b"a")
    without_second = two[: len(one) - 40] + two[-40:]
    with pytest.raises(PackError, match="counts 2 blobs, but 1 came"):
        unpacked(without_second)


def test_another_version_says_what_to_do() -> None:
    with pytest.raises(PackError, match="version 2 is not 1; update GPUlayer"):
        unpacked(b"GPLPACK\x02" + packed()[8:])


@pytest.mark.parametrize("name", ["", "00", "0" * 64, "A" * 64, "z" * 64, digest(b"") + "00"])
def test_what_is_no_digest_is_refused(name: str) -> None:
    with pytest.raises(PackError, match="64 lower-case hexadecimal"):
        list(iter_pack([(name, io.BytesIO(b""))]))


def test_a_stream_of_unknown_length_is_refused() -> None:
    class Unseekable(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with pytest.raises(PackError, match="cannot seek"):
        list(iter_pack([(digest(b"x"), Unseekable(b"x"))]))
