"""A runner: a warm process that has loaded a function and runs its calls. Scripts that are run by path.

They run with the interpreter of the job's environment, which holds nothing of ours: they need Python 3.9 or newer and
its standard library. `main.py` loads this folder as a package of a private name, so that no module of a user's can meet
one of ours. The agent imports `wire`, and nothing else of it.
"""
