"""Python processes of ours in which something is another way: code that runs at their start."""

from __future__ import annotations

from pathlib import Path

#: Whoever finds a worker of its id connected waits less long until it believes that.
BELIEVES_SOON = "import gpulayer_worker.credential as credential\ncredential.GONE_S = 1.0\n"

#: With these variables a Jupyter server starts more than a second sooner: it can't find the package by which it would
#: check addresses in letters of any script, does without, and we have none.
STARTS_SOON = {"PYTHONPATH": str(Path(__file__).with_name("without"))}


def at_start(folder: Path, code: str) -> dict[str, str]:
    """The variables with which each Python process runs `code` first; it is written into `folder`, which is made."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(folder)}
