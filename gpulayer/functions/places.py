"""Where a call is made: in which notebook, and in which of its cells."""

from __future__ import annotations

from gpulayer.functions.showing import shell_of_kernel


def where_called() -> tuple[str, str]:
    """The notebook's path and the cell's id, where it is one; else '' and ''."""
    shell = shell_of_kernel()
    if shell is None:
        return "", ""
    from gpulayer.notebook.folder import notebook_path

    path = notebook_path(shell.user_ns)
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return str(path or ""), (parent.get("metadata") or {}).get("cellId", "") if parent else ""
