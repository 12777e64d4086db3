"""Rows of the lifecycle, acknowledgements, and the order of commit and send."""

from __future__ import annotations

import ast
from functools import partial

from tests.simulation.mutants.mutant import Mutant, source_of

_LIFECYCLE = "gpulayer_server.core.lifecycle"
_ACKS = ("Recorded", "Forget", "HeartbeatAck")
_MODULES = tuple(f"gpulayer_server.core.{name}" for name in ("attempts", "fleet", "sessions", "jobs"))


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    return {**_rows(), **_acks()}


# ---------------------------------------------------------------- the lifecycle's table


def _table(tree: ast.Module) -> ast.Dict:
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            return node.value
    raise ValueError("no table of moves")


def _rows() -> dict[str, Mutant]:
    found: dict[str, Mutant] = {}
    for n, key in enumerate(_table(ast.parse(source_of(_LIFECYCLE))).keys):
        if not isinstance(key, ast.Tuple):
            raise ValueError("a row of the table is a pair of states")
        old, new = (state.attr.lower() for state in key.elts if isinstance(state, ast.Attribute))
        edit = partial(_without_row, n)
        found[f"lifecycle.{old}-{new}"] = Mutant(module=_LIFECYCLE, line=f"a row: {ast.unparse(key)}", edit=edit)
    return found


def _without_row(n: int, source: str) -> ast.Module:
    tree = ast.parse(source)
    table = _table(tree)
    del table.keys[n], table.values[n]
    return tree


# ---------------------------------------------------------------- acknowledgements


def _acks() -> dict[str, Mutant]:
    """Each statement that sends one, left out and done twice."""
    found: dict[str, Mutant] = {}
    for module in _MODULES:
        numbers: dict[str, int] = {}
        for body, at, word in _sends(ast.parse(source_of(module))):
            numbers[word] = numbers.get(word, 0) + 1
            line, short = ast.unparse(body[at]), module.rsplit(".", 1)[1]
            for times, how in ((0, "dropped"), (2, "doubled")):
                edit = partial(_times, word, numbers[word], times)
                found[f"{short}.{word}:{numbers[word]}-{how}"] = Mutant(module=module, line=line, edit=edit)
    return found


def _sends(tree: ast.Module) -> list[tuple[list[ast.stmt], int, str]]:
    """Where acknowledgements are sent: the block, the place in it, the message's name."""
    found: list[tuple[list[ast.stmt], int, str]] = []
    for node in ast.walk(tree):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list):
                found += [(block, at, word) for at, word in enumerate(map(_sent, block)) if word in _ACKS]
    return sorted(found, key=lambda each: each[0][each[1]].lineno)


def _sent(statement: ast.stmt) -> str:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="send"), args=[_, ast.Call(func=ast.Name(id=word))])):
            return word
    return ""


def _times(word: str, number: int, times: int, source: str) -> ast.Module:
    tree = ast.parse(source)
    body, at, _ = [each for each in _sends(tree) if each[2] == word][number - 1]
    statement = body[at]
    body[at : at + 1] = [statement] * times or [ast.copy_location(ast.Pass(), statement)]
    return tree
