"""Who is told that a sync began to fail, or has recovered."""
