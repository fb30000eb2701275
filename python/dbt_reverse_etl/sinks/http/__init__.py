"""An HTTP API that the user describes; `sink` is the door."""
