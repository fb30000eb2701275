{{ reverse_etl._refuse_other_materialization(['ledger_view', 'view']) }}
{% set rows = 'struct<insert:bigint,update:bigint,delete:bigint>' %}

with acknowledged as (
    select
        *,
        from_json(
            body,
            'lo bigint, hi bigint, snapshot bigint, spec string, counts struct<planned:{{ rows }},delivered:{{ rows }},rejected:{{ rows }},failed:{{ rows }},skipped:{{ rows }},no_match:{{ rows }}>'
        ) as fact_body
    from {{ ref('reverse_etl_ledger') }}
    where fact = 'wave_acknowledged'
)

select
    acknowledged.sync_id,
    runs.sync,
    acknowledged.fence,
    acknowledged.seq,
    acknowledged.recorded_at as acknowledged_at,
    acknowledged.fact_body.lo as first_bucket,
    acknowledged.fact_body.hi as end_bucket,
    acknowledged.fact_body.snapshot as snapshot_id,
    acknowledged.fact_body.spec,
    {% for outcome in ['planned', 'delivered', 'rejected', 'failed', 'skipped', 'no_match'] %}
    {# An older version counted no rows without a match. #}
    {%- set counted = 'acknowledged.fact_body.counts.' ~ outcome -%}
    coalesce({{ counted }}.insert + {{ counted }}.update + {{ counted }}.delete, 0) as {{ outcome }}_rows{{ ',' if not loop.last }}
    {% endfor %}
from acknowledged
inner join {{ ref('reverse_etl_runs') }} runs on runs.sync_id = acknowledged.sync_id and runs.fence = acknowledged.fence
