"""Manifests: canonical bytes, and nothing unsafe gets in."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.source import FileEntry, Manifest, ManifestError, SourceError

DIGEST = hashlib.sha256(b"x").hexdigest()


def entry(path: str, **changes: object) -> FileEntry:
    fields: dict = {"path": path, "mode": 0o644, "size": 1, "sha256": DIGEST, **changes}
    return FileEntry(**fields)


def folder(path: str) -> FileEntry:
    return FileEntry(path=path, mode=0o755, size=0, sha256="", kind="dir")


def wire(*rows: tuple, version: object = 1) -> Any:
    return msgpack.packb([version, rows])


def row(path: object = b"a", *, kind: object = 0, mode: object = 0o644, size: object = 1, digest: object = b"d" * 32):
    return (kind, path, mode, size, digest)


# Any bytes that can be a file's name on Linux, as Python reads them.
names = (
    st.binary(min_size=1, max_size=12)
    .map(
        lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_").replace(b"\\", b"_").decode("utf-8", "surrogateescape")
    )
    .filter(lambda name: name not in (".", ".."))
)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    files: dict[str, FileEntry] = {}
    for parts in draw(st.lists(st.lists(names, min_size=1, max_size=3), max_size=12)):
        path = "/".join(parts)
        ancestors = {"/".join(parts[:count]) for count in range(1, len(parts))}
        if ancestors & files.keys() or any(known.startswith(path + "/") for known in files):
            continue
        if draw(st.booleans()):
            mode = draw(st.sampled_from([0o644, 0o755]))
            files[path] = entry(path, mode=mode, size=draw(st.integers(0, 2**63 - 1)), sha256=draw(digests))
        else:
            files[path] = folder(path)
    return Manifest(files.values())


@settings(deadline=None)
@given(manifests())
def test_bytes_round_trip(manifest: Manifest) -> None:
    again = Manifest.from_bytes(manifest.to_bytes())
    assert again == manifest
    assert again.files == manifest.files
    assert again.digest == manifest.digest == hashlib.sha256(manifest.to_bytes()).hexdigest()
    assert again.total_bytes == sum(file.size for file in manifest.files)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused_with_our_error(data: bytes) -> None:
    with pytest.raises(SourceError):
        Manifest.from_bytes(data)


@settings(deadline=None)
@given(manifests().filter(len), st.data())
def test_a_flipped_byte_never_gives_the_same_digest(manifest: Manifest, data: st.DataObject) -> None:
    raw = bytearray(manifest.to_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        other = Manifest.from_bytes(bytes(raw))
    except SourceError:
        return
    assert other.digest != manifest.digest


def test_order_of_the_entries_does_not_matter() -> None:
    files = [entry("b"), entry("a/z"), entry("a.txt"), folder("empty"), entry("a-b/c")]
    assert Manifest(files).digest == Manifest(reversed(files)).digest
    assert [file.path for file in Manifest(files).files] == ["a-b/c", "a.txt", "a/z", "b", "empty"]


def test_sorted_by_bytes_also_where_text_sorts_otherwise() -> None:
    undecodable, last = b"\xff".decode("utf-8", "surrogateescape"), "\U0001f600"
    manifest = Manifest([entry(undecodable), entry(last), entry("\uffee")])
    assert [file.path for file in manifest.files] == ["\uffee", last, undecodable]
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


def test_equal_content_has_equal_digest_and_mode_matters() -> None:
    assert Manifest([entry("a")]).digest != Manifest([entry("a", mode=0o755)]).digest
    assert hash(Manifest([entry("a")])) == hash(Manifest([entry("a")]))
    assert Manifest([]).total_bytes == 0


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "../a",
        "a/../b",
        "a/..",
        ".",
        "./a",
        "a/./b",
        "a//b",
        "a/",
        "a\0b",
        "..\\a",
        "a\\b",
        "\\a",
    ],
)
def test_unsafe_paths_are_refused(path: str) -> None:
    with pytest.raises(ManifestError, match="manifest entry"):
        Manifest([entry(path)])
    with pytest.raises(ManifestError, match="manifest entry"):
        Manifest.from_bytes(wire(row(path.encode())))


def test_a_path_longer_than_linux_allows_is_refused() -> None:
    with pytest.raises(ManifestError, match="longer than 4096 bytes"):
        Manifest([entry("a/" * 3000 + "b")])


def test_text_that_stands_for_no_bytes_is_refused() -> None:
    with pytest.raises(ManifestError, match="UTF-8"):
        Manifest([entry("\ud800")])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": 0o4755}, "mode"),
        ({"mode": 0o600}, "mode"),
        ({"mode": True}, "mode"),
        ({"size": -1}, "size"),
        ({"size": 2**63}, "size"),
        ({"size": 1.0}, "size"),
        ({"size": True}, "size"),
        ({"sha256": DIGEST[:-1]}, "digest"),
        ({"sha256": DIGEST.upper()}, "digest"),
        ({"sha256": "g" * 64}, "digest"),
        ({"sha256": ""}, "digest"),
        ({"kind": "link"}, "kind"),
        ({"kind": "dir", "mode": 0o755}, "folder"),
        ({"kind": "dir", "size": 0, "sha256": "", "mode": 0o644}, "mode"),
    ],
)
def test_fields_out_of_range_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        Manifest([entry("a", **changes)])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({"files": []}),
        msgpack.packb([1, {}]),
        wire(("a", 1)),
        wire(row(kind=2)),
        wire(row(kind=True)),
        wire(row("a")),  # text where bytes belong: not the canonical form
        wire(row(digest=b"d" * 31)),
        wire(row(digest=b"d" * 33)),
        wire(row(mode=0o777)),
        wire(row(size=-1)),
        wire(row(size=b"1")),
        wire(row()) + b"\0",
        wire(row())[:-1],
        wire(row(b"b"), row(b"a")),  # not sorted
        b"\x92\xcc\x01\x90",  # a number in more bytes than it needs
        msgpack.packb([True, []]),
    ],
)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_bytes(data)


def test_doubled_paths_and_files_as_parents_are_refused() -> None:
    with pytest.raises(ManifestError, match="twice"):
        Manifest([entry("a"), entry("a", size=2)])
    with pytest.raises(ManifestError, match="twice"):
        Manifest.from_bytes(wire(row(), row()))
    with pytest.raises(ManifestError, match="its parent a/b is an entry too"):
        Manifest([entry("a/b"), entry("a/b/c/d")])
    with pytest.raises(ManifestError, match="parent"):
        Manifest([folder("a"), entry("a/b")])


def test_another_version_says_what_to_do() -> None:
    with pytest.raises(ManifestError, match="version 2 is not 1; update GPUlayer"):
        Manifest.from_bytes(wire(version=2))


def test_entries_are_frozen() -> None:
    with pytest.raises(AttributeError):
        entry("a").path = "/etc/passwd"  # type: ignore[misc]


# --- one that resembles another ------------------------------------------------------------------------------------

few_paths = st.sampled_from(
    ["a", "a.py", "a/b", "a/b/c", "a-", "b", "b/a", "b/é", "c", "c/d", "x" * 300, "z", "\udcff"]
)
some_entries = st.dictionaries(few_paths, st.tuples(st.sampled_from([0o644, 0o755]), st.integers(0, 300)), max_size=9)


def made(entries: dict[str, tuple[int, int]]) -> Manifest | None:
    """None where a file would be the parent of another."""
    try:
        return Manifest(
            FileEntry(path=path, mode=mode, size=size, sha256=f"{size:064x}") for path, (mode, size) in entries.items()
        )
    except ManifestError:
        return None


@given(some_entries, some_entries)
@settings(max_examples=500)
def test_reading_beside_another_gives_the_same(
    old: dict[str, tuple[int, int]], new: dict[str, tuple[int, int]]
) -> None:
    near, wanted = made(old), made(new)
    if near is None or wanted is None:
        return
    read = Manifest.from_bytes(wanted.to_bytes(), near)
    assert read == wanted
    assert read.digest == wanted.digest
    again = read.replaced([entry._replace(size=7) for entry in read.files[:1]])
    assert Manifest.from_bytes(again.to_bytes()) == again


@given(some_entries, st.data())
@settings(max_examples=300)
def test_no_damage_gets_in_beside_a_good_one(old: dict[str, tuple[int, int]], data: st.DataObject) -> None:
    near = made(old)
    if near is None or not near.files:
        return
    raw = bytearray(near.to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    outcomes = []
    for beside in (None, near):
        try:
            outcomes.append(Manifest.from_bytes(bytes(raw), beside))
        except ManifestError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "rows",
    [
        [b"a", b"c", b"b"],  # out of order
        [b"a", b"b", b"b"],
        [b"a", b"a/x", b"b"],  # a file that is a folder too
        [b"a", b"../x", b"b"],
        [b"a", b"x//y", b"b"],
        [b"a", b"", b"b"],
        [b"a", b"x\0y", b"b"],
        [b"a", b"x\\y", b"b"],
        [b"a", b"x/.", b"b"],
        [b"/a", b"b"],
    ],
)
def test_rows_that_do_not_fit_between_are_refused(rows: list[bytes]) -> None:
    near = Manifest(FileEntry(path=path, mode=0o644, size=1, sha256="0" * 64) for path in ("a", "b", "c"))
    data = wire(*((0, path, 0o644, 1, bytes(32)) for path in rows))
    with pytest.raises(ManifestError) as alone:
        Manifest.from_bytes(data)
    with pytest.raises(ManifestError) as beside:
        Manifest.from_bytes(data, near)
    assert str(alone.value) == str(beside.value)


@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 17, 65_534, 65_535, 65_536, 65_537])
def test_one_more_and_one_less_at_each_length_of_the_head(count: int) -> None:
    entries = [FileEntry(path=f"{number:06d}", mode=0o644, size=1, sha256="0" * 64) for number in range(count + 1)]
    fewer, more = Manifest.trusted(entries[:-1]), Manifest.trusted(entries)
    assert Manifest.from_bytes(more.to_bytes(), fewer) == more
    assert Manifest.from_bytes(fewer.to_bytes(), more) == fewer


def test_what_is_shared_is_not_made_again() -> None:
    near = Manifest(FileEntry(path=path, mode=0o644, size=1, sha256="0" * 64) for path in "abcdef")
    new = near.replaced([near.files[2]._replace(size=5)])
    read = Manifest.from_bytes(new.to_bytes(), near)
    assert [left is right for left, right in zip(read.files, near.files, strict=True)] == [True] * 2 + [False] + [
        True
    ] * 3


def test_replacing_nothing_gives_the_same_manifest() -> None:
    manifest = Manifest(FileEntry(path=path, mode=0o644, size=1, sha256="0" * 64) for path in "ab")
    assert manifest.replaced(manifest.files) is manifest
