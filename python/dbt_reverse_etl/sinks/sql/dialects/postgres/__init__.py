"""`sink` is the door."""
