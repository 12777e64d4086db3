"""A job's kernel: a real ipykernel that writes its messages into a spool. Scripts that are run by path.

They run with the interpreter of the job's environment, which holds nothing of ours: they need Python 3.9 or newer and
ipykernel 6.29 or 7, and import nothing else. `main.py` loads this folder as a package of a private name, so that no
module of a user's can meet one of ours.
"""
