{# Every value in the head image is one of `values`; NULLs are left out, as in dbt's `accepted_values`. #}
{% test current_accepted_values(model, column_name, values, quote=true) %}

select
    {{ column_name }} as value_field,
    count(*) as n_records
from {{ reverse_etl._tested_image(model) }}
where {{ column_name }} not in (
    {%- for value in values -%}
        {{ reverse_etl._string(value) if quote else value }}{{ ', ' if not loop.last }}
    {%- endfor -%}
)
group by {{ column_name }}

{% endtest %}
