"""The use cases: a push, a plan, a reconcile, an operation, from dbt's artifacts to reports."""
