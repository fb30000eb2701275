{#
  The id of the newest snapshot in a changelog, or in a table that was made of one and keeps `_snapshot_id`; 0 if there is none.
  A number, known when the model is compiled: only ranges of literal ids let Delta skip files.
#}
{% macro newest_snapshot(relation) -%}
    {%- if not execute -%}{{ return(0) }}{%- endif -%}
    {#- Only these compile what may not be built yet: a table that dbt does not list, as one by its path, counts in a run. -#}
    {%- if flags.WHICH in ('compile', 'generate') and relation is not string and load_cached_relation(relation) is none -%}{{ return(0) }}{%- endif -%}
    {#- Not of what --empty and --sample leave of it. -#}
    {%- set whole = relation if relation is string else relation.replace(event_time_filter=none, limit=none) -%}
    {{ return(run_query('select coalesce(max(_snapshot_id), 0) from ' ~ whole).rows[0][0] | int) }}
{%- endmacro %}
