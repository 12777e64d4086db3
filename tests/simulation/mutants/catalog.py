"""All mutants, by name; and those that change nothing that must hold."""

from __future__ import annotations

from tests.simulation.mutants import guards, handwritten, words
from tests.simulation.mutants.equivalents import EQUIVALENT
from tests.simulation.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {**handwritten.mutants(), **words.mutants(), **guards.mutants()}

#: The mutants that seeds have to find.
TO_BE_FOUND: tuple[str, ...] = tuple(name for name in MUTANTS if name not in EQUIVALENT)
