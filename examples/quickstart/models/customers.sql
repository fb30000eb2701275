-- Any model of yours: nothing here knows of syncs.
-- dbt-spark with `method: session` loads an empty cell of a seed as the text None (dbt-labs/dbt-adapters#487).
{{ config(materialized='table') }}

select
    customer_id,
    trim(name) as name,
    lower(nullif(email, 'None')) as email,
    plan,
    lifetime_value,
    nullif(internal_note, 'None') as internal_note
from {{ ref('customers_raw') }}
