{# No row of the head image lacks a value. #}
{% test current_not_null(model, column_name) %}

select {{ '*' if should_store_failures() else column_name }}
from {{ reverse_etl._tested_image(model) }}
where {{ column_name }} is null

{% endtest %}
