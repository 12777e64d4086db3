"""Packs: what goes in comes out, and nothing else does."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.source import (
    PackError,
    SourceChanged,
    iter_pack,
    plain_pack_bytes,
    read_pack,
    worth_compressing,
    write_pack,
)
from gpulayer.source.blobs import Span
from gpulayer.source.pack import CHUNK_BYTES, MAGIC, READ_BYTES, WORTH_BYTES

contents = st.lists(st.binary(max_size=300) | st.integers(0, 300_000).map(lambda size: b"\x07" * size), max_size=6)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def packed(*blobs: bytes, compress: bool = False) -> bytes:
    return b"".join(iter_pack(((digest(blob), io.BytesIO(blob)) for blob in blobs), compress=compress))


def unpacked(data: bytes) -> list[bytes]:
    result = []
    for name, size, chunks in read_pack(io.BytesIO(data)):
        blob = b"".join(chunks)
        assert (digest(blob), len(blob)) == (name, size)
        result.append(blob)
    return result


@settings(deadline=None)
@given(contents, st.booleans())
def test_round_trip(blobs: list[bytes], compress: bool) -> None:
    assert unpacked(packed(*blobs, compress=compress)) == blobs


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
@given(contents, st.data())
def test_a_compressed_pack_that_was_cut_is_found_or_whole(blobs: list[bytes], data: st.DataObject) -> None:
    """zstd's own end may lack: then all blobs are there, and checked."""
    whole = packed(*blobs, compress=True)
    cut = data.draw(st.integers(0, len(whole) - 1))
    try:
        assert unpacked(whole[:cut]) == blobs
    except PackError:
        return
    assert cut >= len(whole) - 3


@settings(deadline=None)
@given(contents.filter(any), st.data())
def test_a_flipped_byte_of_a_compressed_pack_gives_no_other_blobs(blobs: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(packed(*blobs, compress=True))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert unpacked(bytes(raw)) == blobs
    except PackError:
        pass


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
    for coding in (b"", b"\0", b"\1", b"\2"):
        with pytest.raises(PackError):
            unpacked(MAGIC + coding + data)


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
    for compress in (False, True):
        pieces = list(iter_pack([(digest(bytes(3_000_000)), path)], compress=compress))
        assert max(map(len, pieces)) < 2 * CHUNK_BYTES
        for _, _, chunks in read_pack(io.BytesIO(b"".join(pieces))):
            assert max(len(chunk) for chunk in chunks) <= READ_BYTES
    sent = list(iter_pack([(digest(bytes(3_000_000)), path)], verify=False))  # of a cache: mapped, and not copied
    assert b"".join(sent) == b"".join(iter_pack([(digest(bytes(3_000_000)), path)]))
    assert sum(isinstance(piece, memoryview) for piece in sent) == 3
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
    with pytest.raises(PackError, match="version 1 is not 2; update GPUlayer"):
        unpacked(b"GPLPACK\x01" + packed()[8:])


# --- compressed ------------------------------------------------------------------------------------------------------


def test_text_shrinks_and_what_does_not_compress_hardly_grows() -> None:
    text = b"".join(b"def step_%d(loss):\n    return loss * %d\n" % (n, n) for n in range(20_000))
    noise = os.urandom(1_000_000)
    assert len(packed(text, compress=True)) < len(text) / 3
    assert len(packed(noise, compress=True)) < len(noise) + 1000


def test_small_packs_and_this_very_machine_are_not_worth_it() -> None:
    assert worth_compressing(WORTH_BYTES, "https://gpu.example:8443")
    assert not worth_compressing(WORTH_BYTES - 1, "https://gpu.example:8443")
    for url in ("http://127.0.0.1:5000", "http://localhost:5000", "http://[::1]:5000"):
        assert not worth_compressing(10**9, url)


def test_a_plain_pack_without_zstandard_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert unpacked(packed(b"a", b"b")) == [b"a", b"b"]


def test_another_zstd_frame_behind_the_first_is_refused() -> None:
    whole = packed(b"a", compress=True)
    with pytest.raises(PackError, match="follows the end"):
        unpacked(whole + whole[len(MAGIC) + 1 :])
    with pytest.raises(PackError, match="can't be read"):
        unpacked(whole + b"more of it")


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True])
def test_a_pack_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(compress: bool) -> None:
    bomb = packed(b"small", bytes(100_000_000), compress=compress)
    assert not compress or len(bomb) < 20_000
    stream = io.BytesIO(bomb)
    with pytest.raises(PackError, match=r"^the pack unpacks to more than 1000000 bytes, .*; send less at a time$"):
        list(read_pack(stream, max_bytes=1_000_000))
    assert compress or stream.tell() <= READ_BYTES + len(MAGIC) + 1


def test_headers_of_empty_blobs_count_too() -> None:
    bomb = packed(*[b""] * 100_000, compress=True)
    assert len(bomb) < 5000
    with pytest.raises(PackError, match="unpacks to more than"):
        list(read_pack(io.BytesIO(bomb), max_bytes=1_000_000))


def test_a_stream_that_wants_much_memory_is_refused() -> None:
    zstandard = pytest.importorskip("zstandard")
    parameters = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(packed(os.urandom(1_000_000))[len(MAGIC) + 1 :]) + stream.flush()
    with pytest.raises(PackError, match=r"zstd stream can't be read .*; send it again"):
        unpacked(MAGIC + b"\1" + frame)


def test_only_what_was_wanted_is_taken() -> None:
    whole = packed(b"one", b"other", compress=True)
    got = read_pack(io.BytesIO(whole), wanted={digest(b"one"): 3})
    assert b"".join(next(got)[2]) == b"one"
    with pytest.raises(PackError, match="of 5 bytes, which nobody asked for"):
        next(got)
    with pytest.raises(PackError, match="nobody asked for"):
        list(read_pack(io.BytesIO(whole), wanted={digest(b"one"): 4, digest(b"other"): 5}))


# --- sources ---------------------------------------------------------------------------------------------------------


def test_parts_of_files_are_blobs_too(tmp_path: Path) -> None:
    (tmp_path / "shared").write_bytes(b"..one..two")
    spans = [
        (digest(b"one"), Span(str(tmp_path / "shared"), 2, 3)),
        (digest(b"two"), Span(str(tmp_path / "shared"), 7, 3)),
    ]
    assert unpacked(b"".join(iter_pack(spans))) == [b"one", b"two"]
    assert unpacked(b"".join(iter_pack(spans, verify=False))) == [b"one", b"two"]
    cut = [(digest(b"two"), Span(str(tmp_path / "shared"), 7, 4))]
    with pytest.raises(SourceChanged):
        b"".join(iter_pack(cut, verify=False))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no fifos here")
def test_what_became_a_fifo_or_went_is_neither_waited_for_nor_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SourceChanged, match="fifo is no regular file any more; run it again"):
        list(iter_pack([(digest(b""), tmp_path / "fifo")]))
    with pytest.raises(SourceChanged, match="gone is gone since it was scanned; run it again"):
        list(iter_pack([(digest(b""), tmp_path / "gone")]))


@given(contents)
@settings(deadline=None)
def test_the_length_of_a_plain_pack_is_known_before(blobs: list[bytes]) -> None:
    assert plain_pack_bytes(map(len, blobs)) == len(packed(*blobs))


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
