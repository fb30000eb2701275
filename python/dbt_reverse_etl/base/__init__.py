"""What every other package may use: errors, outcomes, redaction, SQL text, durable files, threads and signals."""
