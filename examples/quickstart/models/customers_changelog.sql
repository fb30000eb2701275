-- Each run adds what changed since the one before: one snapshot, one atomic commit.
{{ config(materialized='changelog', unique_key='customer_id') }}

select * from {{ ref('customers') }}
