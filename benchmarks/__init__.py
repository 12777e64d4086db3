"""Benchmarks: ours, a peer and the limit, interleaved in one run. `python -m benchmarks NAME [--quick]`."""
