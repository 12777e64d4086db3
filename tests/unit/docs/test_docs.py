"""What the docs draw is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from gpulayer_server.core.lifecycle import diagram

ROOT = Path(__file__).resolve().parents[3]


def test_the_lifecycle_diagram_is_the_tables() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- lifecycle:.*?-->\n```mermaid\n(.*?)\n```\n<!-- /lifecycle -->", text, re.DOTALL)
    assert found is not None
    assert found.group(1) == diagram()


def test_every_file_that_the_architecture_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    walk = text[text.index("## One cell's bytes") : text.index("## The core")]
    names = set(re.findall(r"`((?:\w+/)+\w+\.py)`", walk))
    bases = [
        "gpulayer",
        "jupyter_ext",
        "server/gpulayer_server",
        "worker/gpulayer_worker",
        "worker/gpulayer_worker/kernel",
    ]
    assert names
    for name in names:
        inside = name.removeprefix("worker/")
        assert any((ROOT / base / part).exists() for base in bases for part in (name, inside)), name
