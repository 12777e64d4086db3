"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

from gpulayer import source


def test_public_names() -> None:
    assert source.__all__ == [
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
    assert all(getattr(source, name) is not None for name in source.__all__)


def test_all_errors_are_source_errors() -> None:
    errors = [value for name in source.__all__ if isinstance(value := getattr(source, name), type)]
    ours = {error.__name__ for error in errors if issubclass(error, source.SourceError)}
    assert ours == {
        "ManifestError",
        "PackError",
        "SecretRefused",
        "SourceChanged",
        "SourceConflict",
        "SourceError",
        "SourceTooLarge",
        "SymlinkRefused",
        "WorkspaceError",
    }
    assert issubclass(source.SourceError, ValueError)


def test_importing_loads_nothing_heavy_and_a_plain_scan_no_pathspec() -> None:
    code = """
import sys, tempfile, pathlib
import gpulayer.source
assert not {"pathspec", "msgpack", "sqlite3", "zstandard"} & set(sys.modules) - before, sys.modules.keys() - before
folder = pathlib.Path(tempfile.mkdtemp())
(folder / ".gitignore").write_text("data/\\n*.log\\n")
(folder / "a.py").write_text("1")
gpulayer.source.scan(folder)
print("pathspec" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; before = set(sys.modules)\n" + code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
