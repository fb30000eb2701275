{# The newest run of each sync: only facts of its fence say how the sync stands. #}
{% macro _newest_runs(ledger) -%}
    select sync_id, max(fence) as fence from {{ ledger }} where fact = 'run_started' group by sync_id
{%- endmacro %}
