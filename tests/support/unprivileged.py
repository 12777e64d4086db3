"""Runs a command as a user without privileges: `python tests/support/unprivileged.py COMMAND [ARGUMENT…]`.

Whoever is no root runs it as it is. For root it goes by a mount namespace of its own, in which what the interpreter
needs below a closed home folder can be reached by that user, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
CANNOT = 75  # the exit code where this machine does not let us: EX_TEMPFAIL

_OPEN = """
set -e
while [ "$1" != -- ]; do
    need=$1 closed=$2
    shift 2
    stage=$(mktemp -d)
    mount --bind "$need" "$stage"
    mount -t tmpfs -o mode=0755 none "$closed"
    mkdir -p "$need"
    mount --move "$stage" "$need"
done
shift
exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --no-new-privs "$@"
"""


def closed_folder(path: Path) -> Path | None:
    """The highest folder above `path` that others may not enter."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def main(command: list[str]) -> int:
    """Run it; its exit code, or `CANNOT` after a line that says why."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp", "GPULAYER_TEST_UNPRIVILEGED": "1"}
    environment.pop("XDG_DATA_HOME", None)  # that of whoever started this
    if os.geteuid() != 0:
        return subprocess.run(command, env=environment, check=False).returncode
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        print("no unshare or no setpriv: nothing runs without privileges", file=sys.stderr)
        return CANNOT
    if subprocess.run(["unshare", "--mount", "true"], check=False, stderr=subprocess.DEVNULL).returncode:
        print("no mount namespace can be made here: nothing runs without privileges", file=sys.stderr)
        return CANNOT
    needs: list[str] = []
    for path in (Path(sys.base_prefix).resolve(), ROOT):
        closed = closed_folder(path)
        if closed is not None:
            needs += [str(path), str(closed)]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", _OPEN, "sh", *needs, "--", *command], env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
