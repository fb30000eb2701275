{#
  A table in which triggers log the keys that changed (see the operation change_table_ddl).
    table     the log: something that the model depends on
    sequence  its column that grows; rows that commit out of order are covered by `overlap`, a number of sequence values
    key       {column of unique_key: column of the log}; default: the same names
#}
{% macro capture_change_table(capture) %}
    {%- set options = capture.options -%}
    {%- set log = reverse_etl._input(capture, 'table') -%}
    {%- set sequence = reverse_etl._quote(options.sequence) -%}
    {%- set bounds = run_query('select cast(max(' ~ sequence ~ ') as string), count(*) from ' ~ log).rows[0] -%}
    {%- set name = 'change_table/' ~ options.table ~ '/' ~ options.sequence -%}
    {%- set before = (capture.since or {}).get(name) -%}
    {%- set problem = none -%}
    {%- if capture.since and (before is none or bounds[0] is not none and bounds[0] | int < before | int) -%}
        {%- set problem = 'the sequence of ' ~ options.table ~ (' began anew' if before is not none else ' was not read before') -%}
    {%- endif -%}
    {%- set candidates -%}
        select distinct {{ reverse_etl._key_from(capture.columns.key, options.key) }} from {{ log }}
        where {{ sequence }} > {{ (before | int if before is not none else 0) - options.overlap }}
    {%- endset -%}
    {{ return({
        'problem': problem,
        'positions': {name: bounds[0] if bounds[0] is not none else (before or '0')},
        'candidates': candidates if capture.since else none,
    }) }}
{% endmacro %}


{# The key columns, read from a table that may name them otherwise. #}
{% macro _key_from(key, renamed) -%}
    {%- for name in key %}{{ reverse_etl._quote((renamed or {}).get(name, name)) }} as {{ reverse_etl._quote(name) }}{{ ', ' if not loop.last }}{% endfor -%}
{%- endmacro %}
