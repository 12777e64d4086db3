"""The source of a job: ignore rules, the manifest of files by hash, packs of blobs.

`scan` turns a folder into a `Bundle`; `iter_pack`, `write_pack` and `read_pack` carry blobs; `materialize` and
`synchronize` write workspaces.
"""

from gpulayer.source.blobs import BlobError
from gpulayer.source.digests import DigestCache
from gpulayer.source.errors import (
    ManifestError,
    PackError,
    SecretRefused,
    SourceChanged,
    SourceConflict,
    SourceError,
    SourceTooLarge,
    SymlinkRefused,
    WorkspaceError,
)
from gpulayer.source.ignore import Exclusion
from gpulayer.source.manifest import FileEntry, Manifest
from gpulayer.source.materialize import Written, materialize, synchronize
from gpulayer.source.pack import iter_pack, plain_pack_bytes, read_pack, worth_compressing, write_pack
from gpulayer.source.scan import Bundle, Limits, scan

__all__ = [
    "BlobError",
    "Bundle",
    "DigestCache",
    "Exclusion",
    "FileEntry",
    "Limits",
    "Manifest",
    "ManifestError",
    "PackError",
    "SecretRefused",
    "SourceChanged",
    "SourceConflict",
    "SourceError",
    "SourceTooLarge",
    "SymlinkRefused",
    "WorkspaceError",
    "Written",
    "iter_pack",
    "materialize",
    "plain_pack_bytes",
    "read_pack",
    "scan",
    "synchronize",
    "worth_compressing",
    "write_pack",
]
