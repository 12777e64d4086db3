"""The control plane: a deterministic core, its shell, and its store."""
