"""Sinks: the code for one type of destination each. A sink is one file; `base.py` is the contract."""
