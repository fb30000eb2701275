"""Delivery: positions, claims, waves, batches, retries. Pure code: no I/O, the clock is injected."""
