{# Every value in the head image stands in `field` of `to`, a relation or another changelog; NULLs are left out. #}
{% test current_relationships(model, column_name, to, field) %}

with child as (
    select {{ column_name }} as from_field
    from {{ reverse_etl._tested_image(model) }}
    where {{ column_name }} is not null
),

parent as (
    select {{ field }} as to_field
    from {{ reverse_etl._referenced_image(to) }}
)

select from_field
from child
left anti join parent on child.from_field = parent.to_field

{% endtest %}
