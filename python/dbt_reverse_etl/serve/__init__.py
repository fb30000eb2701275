"""Pushes after runs of dbt Cloud: a webhook or a question to the API brings a run, a queue keeps it, a process pushes it."""
