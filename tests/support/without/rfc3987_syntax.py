"""Stands in for a package that makes its grammar anew in each process: see `tests.support.sitecode`."""

raise ImportError("left out where it is only waited for")
