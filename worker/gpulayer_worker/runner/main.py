"""Starts a runner: ``python main.py CONFIG.json``. `wire` says what it speaks.

The configuration is a JSON object:

======================  =============================================================================================
function                the fields of a `FunctionSpec`; `data` in Base64
bundle                  the folder with its files; '' for none
protocol                the folder ``gpulayer/protocol``, of which ``records.py``, ``spool.py``, ``failpoints.py`` and
                        the folder ``values`` are loaded by their path
data_socket             where to listen (104 bytes at most); control_socket likewise
spool                   the folder for what calls write; reserve_bytes: the disk space to leave free there
results                 a folder that exists, for the large parts of results
stdout, stderr          the files to which this process's descriptors 1 and 2 append; '' for none
worker                  the machine's name, for failures
isolate                 one call only
memory_limit_bytes      it runs nothing more once it has more memory; null for no limit
stateful                the function is a class, of which an object is made: init is its packed arguments in Base64,
                        init_blobs a list of [digest, path, offset, size]
======================  =============================================================================================

It starts in the folder that calls begin in, and ends with `End` or by a signal, never because whoever started it ended.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

PACKAGE = "_gpulayer_runner"


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


def protocol_of(folder: str) -> Any:
    """The modules of the protocol that a runner needs, from their folder."""
    values = os.path.join(folder, "values")
    records = load(f"{PACKAGE}.records", os.path.join(folder, "records.py"))
    spool = load(f"{PACKAGE}.spool", os.path.join(folder, "spool.py"))
    failpoints = load(f"{PACKAGE}.failpoints", os.path.join(folder, "failpoints.py"))
    load(f"{PACKAGE}.values", os.path.join(values, "__init__.py"), values)
    calls = importlib.import_module(f"{PACKAGE}.values.calls")
    return SimpleNamespace(records=records, spool=spool, failpoints=failpoints, calls=calls)


def run(config: dict[str, Any]) -> None:
    """Runs a runner in this process until it ends; does not return.

    Raises OSError where it can't listen or write.
    """
    faulthandler.enable(2, all_threads=False)  # what crashes the interpreter is in the file of stderr
    here = os.path.dirname(os.path.abspath(__file__))
    if PACKAGE not in sys.modules:
        load(PACKAGE, os.path.join(here, "__init__.py"), here)
    # Children that multiprocessing spawns load the main module anew: it is none of ours.
    main_module = ModuleType("__main__")
    kept, sys.modules["__main__"] = sys.modules["__main__"], main_module
    main_module.__dict__["__builtins__"] = kept.__dict__.get("__builtins__")
    service = importlib.import_module(f"{PACKAGE}.service")
    runner = service.Runner(config, protocol_of(config["protocol"]))
    loading = importlib.import_module(f"{PACKAGE}.loading")
    runner.run(loading.load)


def main(arguments: list[str]) -> int:
    """Runs a runner until it ends; returns the exit code where it could not start."""
    if len(arguments) != 1:
        sys.stderr.write("usage: main.py CONFIG.json\n")
        return 2
    try:
        with open(arguments[0], "rb") as file:
            config = json.load(file)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"the configuration {arguments[0]} can't be read: {error}\n")
        return 2
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and sys.path[0] and os.path.abspath(sys.path[0]) == here:
        del sys.path[0]
    sys.argv = [""]
    run(config)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
