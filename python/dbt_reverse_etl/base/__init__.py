"""What every other package may use: errors, outcomes, redaction, SQL text, threads and signals."""
