"""Which file systems are of the network: told by lists of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulayer.protocol import localdisk
from gpulayer.protocol.localdisk import filesystem_type, network_filesystem, parse_darwin, parse_mountinfo

MOUNTINFO = b"""\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:35 / /home rw,relatime - nfs4 server:/home rw,vers=4.2
41 40 254:3 / /home/ana/scratch rw,relatime - xfs /dev/vdb rw
42 27 0:36 / /mnt/my\\040disk rw - fuse.sshfs ana@host:/ rw,user_id=0
43 27 0:37 / /mnt/\xc3\xa9t\xc3\xa9\\134x rw - cifs //host/x rw
44 27 0:38 / /mnt/bind rw - fuse /origin rw
45 27 254:4 / /mnt/usb rw - fuseblk /dev/sda1 rw
46 27 0:39 / /mnt/twice rw - nfs server:/a rw
47 27 254:5 / /mnt/twice rw - btrfs /dev/vdc rw
no mount at all
"""


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mounts above are those of this machine."""
    monkeypatch.setattr(localdisk, "_mounts", lambda: parse_mountinfo(MOUNTINFO))


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", ""),
        ("/srv/data", ""),
        ("/home", "nfs4"),
        ("/home/ana/.local/share/gpulayer", "nfs4"),
        ("/home/ana/scratch/gpulayer", ""),
        ("/home/ana/scratchy", "nfs4"),
        ("/homestead", ""),
        ("/mnt/my disk/data", "fuse.sshfs"),
        ("/mnt/été\\x/data", "cifs"),
        ("/mnt/bind", "fuse"),
        ("/mnt/usb", ""),
        ("/mnt/twice/x", ""),
    ],
)
@pytest.mark.usefixtures("mounts")
def test_the_innermost_mount_counts(folder: str, kind: str) -> None:
    assert network_filesystem(Path(folder)) == kind


@pytest.mark.usefixtures("mounts")
def test_a_symlink_is_followed_to_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/home/ana")
    assert filesystem_type(tmp_path / "data" / "gpulayer") == "nfs4"


def test_where_there_is_no_list_nothing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(localdisk, "Path", lambda _: tmp_path / "no mountinfo")
    assert filesystem_type(tmp_path) == ""
    assert network_filesystem(tmp_path) == ""


def test_the_list_of_macos() -> None:
    listed = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
//ana@host/share on /Volumes/my share (smbfs, nodev, nosuid, mounted by ana)
map auto_home on /System/Volumes/Data/home (autofs, automounted)
"""
    assert list(parse_darwin(listed)) == [
        ("/", "apfs"),
        ("/Volumes/my share", "smbfs"),
        ("/System/Volumes/Data/home", "autofs"),
    ]
