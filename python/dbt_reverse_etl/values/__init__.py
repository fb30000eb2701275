"""Exact values: Arrow types, one JSON encoding, Spark types as Arrow types."""
