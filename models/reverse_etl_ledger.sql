{{ config(materialized='ledger') }}

{{ reverse_etl._ledger_columns() }}
