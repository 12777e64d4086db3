"""Says which of some distributions are installed, without importing them: one JSON object on standard output."""

from __future__ import annotations

import json
import os
import platform
import sys


def main() -> int:
    """`installed.py NAME...`: the interpreter's version, the folders that it imports from, and versions by name."""
    sys.path.pop(0)  # our own folder
    from importlib import metadata

    found = {}
    for name in sys.argv[1:]:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = str(version or "")  # one whose metadata is damaged has none
    answer = {
        "python": platform.python_version(),
        "folders": [path for path in sys.path if os.path.isdir(path)],
        "packages": found,
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
