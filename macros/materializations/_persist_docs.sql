{#
  dbt's `persist_docs` for a table. It alters only what differs, for each ALTER is a commit, with which a push or a capture may conflict; dbt-spark's alters
  each column in each run, and only where `file_format` is set to a format that can.
#}
{% macro _persist_docs(target) %}
    {%- if config.persist_relation_docs() or config.persist_column_docs() -%}
        {%- set found, present = namespace(is_of_table=false, comment=''), {} -%}
        {%- for row in run_query('describe table extended ' ~ target).rows -%}
            {%- if row[0] == '# Detailed Table Information' -%}{%- set found.is_of_table = true -%}
            {%- elif found.is_of_table and row[0] == 'Comment' -%}{%- set found.comment = row[1] -%}
            {%- elif not found.is_of_table and row[0] | lower not in present -%}{%- do present.update({row[0] | lower: row[2] or ''}) -%}
            {%- endif -%}
        {%- endfor -%}
        {%- if config.persist_relation_docs() and model.description and model.description != found.comment -%}
            {%- do run_query('comment on table ' ~ target ~ ' is ' ~ reverse_etl._string(model.description)) -%}
        {%- endif -%}
        {%- for column in (model.columns.values() if config.persist_column_docs() else []) if column.description and present.get(column.name | lower, column.description) != column.description -%}
            {%- do run_query('alter table ' ~ target ~ ' alter column ' ~ reverse_etl._quote(column.name) ~ ' comment ' ~ reverse_etl._string(column.description)) -%}
        {%- endfor -%}
    {%- endif -%}
{% endmacro %}


{# What `persist_docs` asks to write of this model, as text; empty: nothing. #}
{% macro _wanted_docs() -%}
    {%- if config.persist_relation_docs() -%}{{ model.description }}{%- endif -%}
    {%- if config.persist_column_docs() -%}{%- for column in model.columns.values() -%}{{ column.name }}{{ column.description }}{%- endfor -%}{%- endif -%}
{%- endmacro %}
