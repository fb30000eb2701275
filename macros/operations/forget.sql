{#
  Drop the position of a sync: the next push, if any, is a first load. The destination is left as it is.
    dbt run-operation forget --args '{sync: crm_contacts}'
#}
{% macro forget(sync) %}
    {%- do reverse_etl._request('forget', sync) -%}
{% endmacro %}


{# A request stands in the ledger until the next push of the sync carries it out, once. #}
{% macro _request(operation, sync) %}
    {%- set ledger = graph.nodes['model.reverse_etl.reverse_etl_ledger'].relation_name -%}
    {%- set known = run_query("select 1 from " ~ ledger ~ " where sync = " ~ reverse_etl._string(sync) ~ " limit 1").rows | length -%}
    {%- if not known -%}
        {%- set names = graph.exposures.values() | map(attribute='name') | list -%}
        {%- if sync not in names or operation == 'forget' -%}
            {{ exceptions.raise_compiler_error("sync: found '" ~ sync ~ "', of which the ledger knows nothing; expected one of " ~ (names | join(', ') or '(no exposures)') ~ '. Next: correct --args, or run it first') }}
        {%- endif -%}
    {%- endif -%}
    {%- do run_query(
        "insert into " ~ ledger ~ " (sync_id, fence, seq, fact, recorded_at, sync, run_id, body) select 'request', 0, 0, 'request', current_timestamp(), "
        ~ reverse_etl._string(sync) ~ ", uuid(), " ~ reverse_etl._string(tojson({'operation': operation, 'invocation_id': invocation_id}))
    ) -%}
    {%- do log(operation ~ ' ' ~ sync ~ ': the next push carries it out (dbt run, or dbt-reverse-etl push).', info=true) -%}
{% endmacro %}
