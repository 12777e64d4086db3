"""Every staged situation comes out as it must."""

from __future__ import annotations

import pytest

from tests.simulation.staging import scenarios

SCENARIOS = scenarios()


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_situation_comes_out_as_it_must(name: str) -> None:
    SCENARIOS[name]()
