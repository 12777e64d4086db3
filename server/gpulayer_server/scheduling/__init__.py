"""Pure placement: which worker can take what, and why not."""
