"""Finding a control plane and talking to it."""
