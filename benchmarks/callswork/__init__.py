"""What `benchmarks.calls` runs: ours, the limit and the peers, each in a process of its own that answers requests."""
