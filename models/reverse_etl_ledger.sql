{#- The name of the target: dbt's manifest tells of it nowhere else. -#}
{{ config(materialized='ledger', meta={'reverse_etl': {'target': target.name}}) }}

{{ reverse_etl._ledger_columns() }}
