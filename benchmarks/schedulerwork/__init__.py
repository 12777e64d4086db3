"""What `python -m benchmarks scheduler` is made of: a fleet of many shapes, and jobs that ask for many things."""
