"""What `benchmarks.fleet` runs: our control plane and agents, the limit, and the peer."""
