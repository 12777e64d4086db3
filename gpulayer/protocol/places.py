"""Where the data folder of this user and machine is, and what of the environment goes to children.

Apart from `endpoint`, which re-exports it, since a process that starts others at once needs no more than this.
"""

from __future__ import annotations

import os
from pathlib import Path

REMOTE = ("GPULAYER_URL", "GPULAYER_TOKEN", "GPULAYER_FINGERPRINT")
"""The variables by which a person leads a client to a control plane on another machine."""


def without_secrets() -> dict[str, str]:
    """This process's environment for a child, which gets none of `REMOTE`: its token is this process's alone."""
    return {name: value for name, value in os.environ.items() if name not in REMOTE}


def machine_id() -> str:
    """A short name of this machine that stays the same, so that home folders may be shared between machines."""
    for name in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text:
            break
    else:
        import platform

        text = platform.node()
    import hashlib  # whoever is told the folder needs none

    return hashlib.sha256(text.encode()).hexdigest()[:12]


def data_folder() -> Path:
    """The data folder of this user and machine: GPULAYER_DATA, else `~/.local/share/gpulayer/MACHINE-ID`."""
    named = os.environ.get("GPULAYER_DATA")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser().absolute() / "gpulayer" / machine_id()
