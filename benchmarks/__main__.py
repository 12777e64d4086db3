"""`python -m benchmarks NAME [--quick]`: runs `benchmarks.NAME.main(argv)`."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path


def names(folder: Path | None = None) -> dict[str, str]:
    """The benchmarks and the first line of what each says of itself: the modules here that have a `main`.

    Nothing is imported: a benchmark whose peers are not installed is listed too.
    """
    found: dict[str, str] = {}
    for path in sorted((folder or Path(__file__).parent).glob("[!_]*.py")):
        try:
            module = ast.parse(path.read_bytes())
        except SyntaxError as error:
            found[path.stem] = f"can't be read: {error}"
            continue
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in module.body):
            found[path.stem] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def main(argv: list[str]) -> int:
    """Run one benchmark. Exit codes: its own (1: a goal was missed), 2 for a wrong name."""
    known = names()
    if not argv or argv[0] not in known:
        if argv and argv[0] not in ("-h", "--help"):
            print(f"no benchmark {argv[0]!r}", file=sys.stderr)
        print("usage: python -m benchmarks NAME [--quick]\n", file=sys.stderr)
        width = max(map(len, known))
        for name, line in known.items():
            print(f"  {name:<{width}}  {line}", file=sys.stderr)
        return 2
    return importlib.import_module(f"benchmarks.{argv[0]}").main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
