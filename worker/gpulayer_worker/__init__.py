"""The worker: a keeper that owns processes and an agent that talks."""
