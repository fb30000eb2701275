-- Counts and sums by plan, kept up to date from what changed since the last run: the customers are never read again.
-- The position stands in the table itself, so it moves in the same commit as the sums, and a run that is repeated counts nothing twice.
{{ config(materialized='incremental', incremental_strategy='merge', unique_key='group_key', file_format='delta', on_schema_change='fail') }}

{% set position = reverse_etl.newest_snapshot(this) if is_incremental() else 0 %}
{% set head = reverse_etl.newest_snapshot(ref('customers_changelog')) %}

with changed as (
    select
        plan,
        sum(_sign) as customers,
        sum(if(lifetime_value is null, 0, _sign)) as with_value,
        coalesce(sum(_sign * lifetime_value), 0) as lifetime_value
    from {{ reverse_etl.signed_changes(ref('customers_changelog'), position, head) }}
    group by plan
)

select
    to_json(struct(changed.plan), map('ignoreNullFields', 'false')) as group_key,  -- a MERGE never matches NULL with NULL
    changed.plan,
    {% if is_incremental() -%}
    changed.customers + coalesce(before.customers, 0) as customers,
    changed.with_value + coalesce(before.with_value, 0) as with_value,
    cast(changed.lifetime_value + coalesce(before.lifetime_value, 0) as decimal(38, 2)) as lifetime_value,
    {%- else -%}
    changed.customers,
    changed.with_value,
    cast(changed.lifetime_value as decimal(38, 2)) as lifetime_value,
    {%- endif %}
    cast({{ head }} as bigint) as _snapshot_id
from changed
{%- if is_incremental() %}
left join {{ this }} as before on before.plan <=> changed.plan
-- Of two runs at once, the second finds another position than it read, and adds nothing.
where (select coalesce(max(_snapshot_id), 0) from {{ this }}) = {{ position }}
{%- endif %}
