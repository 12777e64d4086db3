"""Ours: it starts a control plane with a worker. No slots are named: a worker offers the cores that it may use."""

import gpulayer as gl


@gl.remote
def noop(value: int) -> int:
    """Nothing."""
    return value


if __name__ == "__main__":
    print(noop(1), flush=True)
