"""Passes of a few rows by our own kernels: many rows for little more than one, each bit for bit.

C++ that is compiled when it is first used (`native.py`), checked before it is trusted
(`library.py`), and handed whole stretches of a model as lists of operations (`ops.py`).
"""
