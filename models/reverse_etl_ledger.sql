{{ config(materialized='ledger') }}

{{ reverse_etl._refuse_other_materialization(['ledger']) }}
{{ reverse_etl._ledger_columns() }}
