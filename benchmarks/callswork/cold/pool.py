"""ProcessPoolExecutor."""

from concurrent.futures import ProcessPoolExecutor


def noop(value: int) -> int:
    """Nothing."""
    return value


if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        print(pool.submit(noop, 1).result(), flush=True)
