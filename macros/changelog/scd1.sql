{# SCD type 1: each key once, overwritten in place. That is the head image. #}
{% macro scd1(relation, key=none, columns=none) -%}
    {{ reverse_etl.current(relation, key, columns) }}
{%- endmacro %}
