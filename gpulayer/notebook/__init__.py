"""The magics and the replay of remote output into a local cell."""
