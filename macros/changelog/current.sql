{# The head image: the model's rows as of the newest snapshot. #}
{% macro current(relation, key=none, columns=none) -%}
    {{ reverse_etl._view_image(relation, key, columns) }}
{%- endmacro %}
