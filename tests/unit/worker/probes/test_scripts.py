"""The scripts run on old interpreters, by path, with none of our packages there."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from gpulayer_worker.probes import scripts

FOLDER = Path(scripts.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_script_is_python_3_9_and_imports_only_the_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {each.stem for each in FILES}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names) | ours


def test_no_script_hides_a_framework() -> None:
    assert not {"torch", "jax", "cupy", "mlx", "tensorflow"} & {path.stem for path in FILES}
