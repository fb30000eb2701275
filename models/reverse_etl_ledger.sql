{#- The names of the target and its profile: dbt's manifest tells of them nowhere else. -#}
{{ config(materialized='ledger', meta={'reverse_etl': {'target': target.name, 'profile': target.profile_name}}) }}

{{ reverse_etl._refuse_other_materialization(['ledger']) }}
{{ reverse_etl._ledger_columns() }}
