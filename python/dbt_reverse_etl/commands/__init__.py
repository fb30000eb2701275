"""The commands of `dbt-reverse-etl`; `terminal/` has what they share, `app/` what they do."""
