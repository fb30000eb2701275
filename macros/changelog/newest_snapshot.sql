{#
  The id of the newest snapshot in a changelog, or in a table that was made of one and keeps `_snapshot_id`; 0 if there is none.
  A number, known when the model is compiled: only ranges of literal ids let Delta skip files.
#}
{% macro newest_snapshot(relation) -%}
    {%- if not execute -%}{{ return(0) }}{%- endif -%}
    {{ return(run_query('select coalesce(max(_snapshot_id), 0) from ' ~ reverse_etl._unfiltered(relation)).rows[0][0] | int) }}
{%- endmacro %}
