"""Programs of their own: from nothing to the first result on two slots. Each prints it at once."""

from __future__ import annotations

import compileall
from importlib.util import find_spec

_OURS = ("gpulayer", "gpulayer_server", "gpulayer_worker")


def compile_ours() -> None:
    """Compile our modules, as those of the peers were when they were installed: what is edited is not compiled anew."""
    for name in _OURS:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            compileall.compile_dir(folder, quiet=2)
