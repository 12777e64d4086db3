"""Matrix products with MLX on a machine that has it: `python examples/mlx_matmul.py [--cpu]`.

Without `--cpu` it asks for an Apple device. Where no machine fits, it says of each machine why.
"""

from __future__ import annotations

import argparse

import gpulayer as gl


def benchmark(n: int, repeats: int = 5) -> dict[str, float]:
    """Multiply two n x n matrices of float32, `repeats` times; seconds of the fastest, and 10^9 operations a second."""
    import time

    import mlx.core as mx  # only where it runs

    a, b = mx.random.normal((n, n)), mx.random.normal((n, n))
    mx.eval(a, b)
    seconds: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        mx.eval(a @ b)
        seconds.append(time.perf_counter() - began)
    return {"n": n, "best_s": min(seconds), "gflops": 2 * n**3 / min(seconds) / 1e9}


def main() -> int:
    """Exit code 1 where no machine could take it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="MLX without an Apple device, such as on Linux")
    parser.add_argument("sizes", nargs="*", type=int, default=[256, 512, 1024])
    options = parser.parse_args()
    remote = gl.remote(accelerator=None if options.cpu else "mps", frameworks={"mlx": ">=0.10"})(benchmark)
    try:
        for figures in remote.map(options.sizes):
            print(f"{figures['n']:>6.0f}  {figures['best_s'] * 1e3:8.2f} ms  {figures['gflops']:8.1f} GFLOP/s")
    except gl.JobRejected as rejected:
        print(rejected)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
