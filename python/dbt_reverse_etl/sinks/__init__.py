"""Sinks: the code for one type of destination each. `base` is the contract; each package's `sink` is its door."""
