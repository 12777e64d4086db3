"""Scripts that run by path in the interpreter for jobs, on Python 3.9 and later, with nothing but the framework there.

`installed.py` says which packages are there without importing any; `main.py` computes with one framework and prints
what came of it. They import one another by their folder, never anything else of ours.
"""
