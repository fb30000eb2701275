-- The sums as a full `group by plan` over the customers gives them. A plan that nobody has any more stays in plan_sums, with 0 customers.
{{ config(materialized='view') }}

select
    plan,
    customers,
    if(with_value = 0, null, lifetime_value) as lifetime_value,
    lifetime_value / nullif(with_value, 0) as average_value
from {{ ref('plan_sums') }}
where customers > 0
