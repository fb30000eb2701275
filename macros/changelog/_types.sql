{# Whether every value of a type is one of another type, which Delta can widen it to in place. #}
{% macro _is_wider(type, than) %}
    {%- set whole = reverse_etl._whole_numbers() -%}
    {%- if type in whole and than in whole -%}{{ return(whole.index(type) > whole.index(than)) }}{%- endif -%}
    {%- if type.startswith('decimal(') and than.startswith('decimal(') -%}
        {%- set new, old = type[8:-1].split(','), than[8:-1].split(',') -%}
        {{ return(new[1] | int >= old[1] | int and new[0] | int - new[1] | int >= old[0] | int - old[1] | int) }}
    {%- endif -%}
    {{ return((than, type) == ('float', 'double')) }}
{% endmacro %}
