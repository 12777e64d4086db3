"""A sample of the mutants is found; all of them fit the code as it is. All are run by hand: they take minutes."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys

import pytest

from tests.simulation.mutants import handwritten
from tests.simulation.mutants.catalog import MUTANTS, TO_BE_FOUND
from tests.simulation.mutants.equivalents import EQUIVALENT
from tests.simulation.mutants.mutant import source_of
from tests.simulation.mutants.running import ROOT, find

SEED = "1"
SAMPLE = sorted(TO_BE_FOUND, key=lambda name: hashlib.sha256(f"{SEED} {name}".encode()).hexdigest())[:8]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_mutant_of_the_sample_is_found(name: str) -> None:
    result = find(name, 15.0)
    assert result.found, f"neither a seed nor a situation finds {name}: the simulator has become blind to it"
    assert result.line


@pytest.mark.parametrize("name", list(handwritten.mutants()))
def test_a_written_mutant_fits_the_code_as_it_is(name: str) -> None:
    mutant = MUTANTS[name]
    source = source_of(mutant.module)
    assert ast.dump(mutant.edit(source)) != ast.dump(ast.parse(source))


def test_every_derived_mutant_changes_its_module() -> None:
    trees = {module: ast.parse(source_of(module)) for module in {mutant.module for mutant in MUTANTS.values()}}
    dumps = {module: ast.dump(tree) for module, tree in trees.items()}
    edited = [ast.dump(mutant.edit(source_of(mutant.module))) for mutant in MUTANTS.values()]
    same = [name for (name, mutant), dump in zip(MUTANTS.items(), edited, strict=True) if dump == dumps[mutant.module]]
    assert same == []
    assert len(MUTANTS) > 250


def test_what_is_stated_to_be_equivalent_is_there() -> None:
    assert set(EQUIVALENT) <= set(MUTANTS)
    assert len(EQUIVALENT) < 0.1 * len(MUTANTS)


_BROKEN = """
import ast
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.mutants.running import run_here
broken = Mutant(module="gpulayer_server.core.plane", line="", edit=lambda source: ast.parse("1 / 0"))
raise SystemExit(run_here(broken, 1.0, 0))
"""


def test_a_module_that_can_not_be_imported_finds_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _BROKEN], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_a_mutant_that_is_not_judged_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="was not judged"):
        find("no mutant of that name", 1.0)
