"""How each kind of work runs."""
