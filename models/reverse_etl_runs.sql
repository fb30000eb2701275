{{ reverse_etl._refuse_other_materialization(['ledger_view', 'view']) }}
{% set rows = 'struct<insert:bigint,update:bigint,delete:bigint>' %}
{% set outcomes = ['planned', 'delivered', 'rejected', 'failed', 'skipped', 'no_match'] %}

with started as (
    select *, from_json(body, 'invocation_id string, changelog string, head bigint') as fact_body
    from {{ ref('reverse_etl_ledger') }}
    where fact = 'run_started'
),

finished as (
    select
        sync_id,
        fence,
        recorded_at,
        from_json(
            body,
            'status string, message string, allowed bigint, planned {{ rows }}, counts struct<{% for outcome in outcomes %}{{ outcome }}:{{ rows }}{{ ',' if not loop.last }}{% endfor %}>'
        ) as fact_body
    from {{ ref('reverse_etl_ledger') }}
    where fact = 'run_finished'
)

select
    started.sync_id,
    started.sync,
    started.fence,
    started.run_id,
    started.fact_body.invocation_id,
    started.fact_body.changelog as changelog_uuid,
    started.fact_body.head as snapshot_id,
    started.recorded_at as started_at,
    finished.recorded_at as finished_at,
    coalesce(finished.fact_body.status, 'unfinished') as status,
    finished.fact_body.message,
    {# As health.py says it of a sync: the end was reached, and no more rows are undelivered than the limit of then allows. #}
    coalesce(
        finished.fact_body.status in ('succeeded', 'partial') and (
            finished.fact_body.allowed is null
            or {% for outcome in ['rejected', 'failed', 'skipped'] %}{% for operation in ['insert', 'update', 'delete'] %}finished.fact_body.counts.{{ outcome }}.{{ operation }} + {% endfor %}{% endfor %}0 <= finished.fact_body.allowed
        ),
        false
    ) as ended_well,
    {% for outcome in outcomes %}
    {% for operation in ['insert', 'update', 'delete'] %}
    coalesce(finished.fact_body.{{ 'planned' if outcome == 'planned' else 'counts.' ~ outcome }}.{{ operation }}, 0) as {{ outcome }}_{{ operation }}s{{ ',' if not (loop.last and outcome == 'no_match') }}
    {% endfor %}
    {% endfor %}
from started
left join finished on finished.sync_id = started.sync_id and finished.fence = started.fence
