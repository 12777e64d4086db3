"""The commands of `gpulayer` that the server's half brings along."""
