"""Every guard of the code under test, found in its syntax tree, and the mutant without it.

A guard is an `if` that leaves (raises, returns, continues, breaks) or whose body emits no effect: its test becomes
False. An `if` around effects guards them: its test becomes False, and, in a mutant of its own, True. The guard of a
`case` becomes True, so that its body runs unguarded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from tests.simulation.mutants.mutant import Mutant, source_of

_CORE = "gpulayer_server.core"
_SCHEDULING = "gpulayer_server.scheduling"
_CORE_MODULES = (
    *("plane", "jobs", "attempts", "ending", "gangs", "fleet", "condition", "sessions", "placing", "waiting", "state"),
    *("assigning", "machine"),
)
MODULES = (
    *(f"{_CORE}.{name}" for name in _CORE_MODULES),
    *(f"{_SCHEDULING}.{name}" for name in ("match", "queue")),
    *(f"gpulayer_worker.{name}" for name in ("linkcore", "linkout", "linkcalls", "callslink")),
)

Guard = ast.If | ast.match_case


def mutants() -> dict[str, Mutant]:
    """One or two for each guard, by names such as 'fleet.gone:1' and 'fleet.tick:1-always'."""
    found: dict[str, Mutant] = {}
    for module in MODULES:
        short = module.rsplit(".", 1)[1]
        for place, guard in _guards(ast.parse(source_of(module))).items():
            for suffix, holds in _kinds(guard):
                edit = partial(_decided, place, holds)
                found[f"{short}.{place}{suffix}"] = Mutant(module=module, line=_shown(guard), edit=edit)
    return found


def _kinds(guard: Guard) -> tuple[tuple[str, bool], ...]:
    if isinstance(guard, ast.match_case):
        return (("", True),)
    return (("", False),) if _leaves_or_is_silent(guard) else (("-never", False), ("-always", True))


def _guards(tree: ast.Module) -> dict[str, Guard]:
    """The guards by function and number."""
    places: dict[str, Guard] = {}
    for name, function in _functions(tree, ""):
        guards = [node for node in _own_nodes(function) if _is_guard(node)]
        places.update({f"{name}:{n}": guard for n, guard in enumerate(guards, 1)})  # type: ignore[dict-item]
    return places


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            name = f"{prefix}{child.name}"
            if isinstance(child, ast.FunctionDef):
                yield name, child
            yield from _functions(child, f"{name}.")


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in a function, in the order of its lines, without the functions in it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)


def _is_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) or (isinstance(node, ast.match_case) and node.guard is not None)


def _leaves_or_is_silent(guard: ast.If) -> bool:
    leaves = isinstance(guard.body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))
    return leaves or not any(_emits(each) for statement in guard.body for each in ast.walk(statement))


def _emits(node: ast.AST) -> bool:
    """Effects go to the one list that the functions pass on as `out`."""
    return isinstance(node, ast.Name) and node.id == "out"


def _shown(guard: Guard) -> str:
    if isinstance(guard, ast.If):
        return f"if {ast.unparse(guard.test)}"
    return f"case {ast.unparse(guard.pattern)} if {ast.unparse(guard.guard or guard.pattern)}"


def _decided(place: str, holds: bool, source: str) -> ast.Module:
    tree = ast.parse(source)
    guard = _guards(tree)[place]
    if isinstance(guard, ast.If):
        guard.test = ast.copy_location(ast.Constant(value=holds), guard.test)
    else:
        guard.guard = None
    return tree
