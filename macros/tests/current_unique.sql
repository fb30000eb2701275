{# No value stands twice in the head image; NULLs are left out, as in dbt's `unique`. #}
{% test current_unique(model, column_name) %}

select
    {{ column_name }} as unique_field,
    count(*) as n_records
from {{ reverse_etl._tested_image(model) }}
where {{ column_name }} is not null
group by {{ column_name }}
having count(*) > 1

{% endtest %}
