"""A module beside the notebook: it travels with each cell."""

import time


def main(epochs: int = 4) -> float:
    """Pretend to train; print while it runs."""
    loss = 2.5
    for epoch in range(1, epochs + 1):
        time.sleep(0.3)
        loss *= 0.7
        print(f"epoch {epoch}/{epochs}  loss {loss:.3f}")
    return loss
