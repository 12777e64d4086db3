"""Calls of functions: maps, the runners that take them, and what each of them is given."""
