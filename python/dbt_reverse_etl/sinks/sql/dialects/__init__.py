"""What each database does differently, and the sink of its type."""
