{#
  Take over what stands there:
    dbt run-operation adopt --args '{model: contacts_changelog}'  a table of that name that is no changelog is set aside, its rows kept
    dbt run-operation adopt --args '{sync: crm_contacts}'         the destination already equals the head of now: the next push sets the position there, and sends what was captured since
#}
{% macro adopt(model=none, sync=none) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- if (model is none) == (sync is none) -%}
        {{ exceptions.raise_compiler_error('adopt: found ' ~ ('both model and sync' if model else 'neither model nor sync') ~ "; expected one of them. Next: dbt run-operation adopt --args '{sync: NAME}'") }}
    {%- elif sync is not none -%}
        {%- do reverse_etl._request('adopt', sync) -%}
    {%- else -%}
        {%- set aside = reverse_etl._set_aside(reverse_etl._changelog_node(model), '__adopted_') -%}
        {%- do log('adopt ' ~ model ~ ': the table that stood there is now ' ~ aside ~ '. The next dbt run makes the changelog.', info=true) -%}
    {%- endif -%}
{% endmacro %}
