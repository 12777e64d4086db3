"""Starts a kernel: ``python main.py --connection-file FILE --records records.py --failpoints failpoints.py``.

`FILE` is a Jupyter connection file that exists, with the transport ipc; the other two are the paths of the files of
these names in ``gpulayer/protocol``, with ``spool.py`` and the folder ``values`` beside the first. The kernel ends by a
shutdown request or a signal, never because whoever started it has ended.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from types import ModuleType

PACKAGE = "_gpulayer_kernel"


def load(name: str, path: str, folder: str | None = None) -> ModuleType:
    """The module in the file `path`, as `name`; a package when `folder`, where its modules lie, is given.

    Raises ImportError or OSError when there is no such file.
    """
    folders = None if folder is None else [folder]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main(arguments: list[str]) -> int:
    """Runs a kernel until it ends; returns the exit code."""
    parser = argparse.ArgumentParser(description="A kernel that writes its messages into a spool.")
    parser.add_argument("--connection-file", required=True)
    parser.add_argument("--records", required=True)
    parser.add_argument("--failpoints", required=True)
    options = parser.parse_args(arguments)
    if not os.path.isfile(options.connection_file):
        sys.stderr.write(f"there is no connection file {options.connection_file}: write it, then start the kernel\n")
        return 2
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.abspath(sys.path[0]) == here and sys.path[0]:
        del sys.path[0]
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, wherever a cell moves to
    sys.argv = [""]
    load(PACKAGE, os.path.join(here, "__init__.py"), here)
    folder = os.path.dirname(os.path.abspath(options.records))
    protocol = [load(f"{PACKAGE}.records", options.records)]
    protocol.append(load(f"{PACKAGE}.spool", os.path.join(folder, "spool.py")))
    protocol.append(load(f"{PACKAGE}.failpoints", options.failpoints))
    app = importlib.import_module(f"{PACKAGE}.app")
    return app.run(os.path.abspath(options.connection_file), *protocol, lambda: codec(os.path.join(folder, "values")))


def codec(folder: str) -> ModuleType:
    """The framing of named values, from the folder of the codec. Loaded when a cell first asks for it."""
    if f"{PACKAGE}.codec" not in sys.modules:
        load(f"{PACKAGE}.codec", os.path.join(folder, "__init__.py"), folder)
    return importlib.import_module(f"{PACKAGE}.codec.named")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
