"""Any Singer target as a destination; `sink` is the door."""
