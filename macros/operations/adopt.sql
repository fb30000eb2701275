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
        {%- set node = reverse_etl._changelog_node(model) -%}
        {%- set existing = adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) -%}
        {%- if existing is not none and reverse_etl._missing_own_column(existing) is none -%}
            {{ exceptions.raise_compiler_error(
                'adopt ' ~ model ~ ": found a changelog; expected a table that is none; nothing was changed. Next: dbt run-operation adopt --args '{sync: NAME}' if a destination equals the model, or reset --args '{model: "
                ~ model ~ "}' to start the changelog over"
            ) }}
        {%- endif -%}
        {%- set aside = reverse_etl._set_aside(node, '__adopted_') -%}
        {%- do log('adopt ' ~ model ~ ': the table that stood there is now ' ~ aside ~ '. The next dbt run makes the changelog.', info=true) -%}
    {%- endif -%}
{% endmacro %}
