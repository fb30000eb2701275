{{ reverse_etl._refuse_other_materialization(['ledger_view', 'view']) }}
{% set range = 'struct<lo:bigint,hi:bigint,snapshot:bigint>' %}

with newest as ({{ reverse_etl._newest_runs(ref('reverse_etl_ledger')) }}),

facts as (
    select
        ledger.sync_id,
        ledger.seq,
        ledger.fact,
        from_json(ledger.body, 'lo bigint, hi bigint, snapshot bigint, positions array<{{ range }}>, delivered array<{{ range }}>') as fact_body
    from {{ ref('reverse_etl_ledger') }} ledger
    inner join newest on newest.sync_id = ledger.sync_id and newest.fence = ledger.fence
    where ledger.fact in ('run_started', 'claims_settled', 'wave_acknowledged')
),

{# Each fact moves the keys of its ranges; the last one counts, as in delivery/position.py. #}
moves as (
    select sync_id, seq, number, place.lo, place.hi, place.snapshot
    from facts
    lateral view posexplode(
        case fact
            when 'run_started' then fact_body.positions
            when 'claims_settled' then fact_body.delivered
            else array(struct(fact_body.lo, fact_body.hi, fact_body.snapshot))
        end
    ) as number, place
),

edges as (
    select sync_id, lo as bucket from moves
    union
    select sync_id, hi from moves
),

positions as (
    select sync_id, min(snapshot) as snapshot
    from (
        select edges.sync_id, max_by(moves.snapshot, struct(moves.seq, moves.number)) as snapshot
        from edges
        inner join moves on moves.sync_id = edges.sync_id and edges.bucket >= moves.lo and edges.bucket < moves.hi
        group by edges.sync_id, edges.bucket
    )
    group by sync_id
),

undelivered as (
    select
        sync_id,
        count_if(outcome <> 'no_match') as undelivered_rows,
        count_if(outcome = 'parked') as parked_rows,
        count_if(outcome = 'no_match') as no_match_rows,
        count_if(in_doubt and outcome <> 'no_match') as rows_in_doubt,
        min(if(outcome <> 'no_match', first_failed_at, null)) as undelivered_since
    from {{ ref('reverse_etl_undelivered') }}
    group by sync_id
),

succeeded as (
    select sync_id, max(finished_at) as last_success_at
    from {{ ref('reverse_etl_runs') }}
    where ended_well
    group by sync_id
)

select
    runs.sync_id,
    runs.sync,
    runs.changelog_uuid,
    positions.snapshot as position_snapshot_id,
    runs.status as last_run_status,
    runs.started_at as last_run_at,
    succeeded.last_success_at,
    {# As health.py counts them: a run that ended early lists only those of its acknowledged waves. #}
    greatest(
        coalesce(undelivered.undelivered_rows, 0),
        if(runs.status in ('failed', 'interrupted'), {% for operation in ['insert', 'update', 'delete'] %}planned_{{ operation }}s - delivered_{{ operation }}s - no_match_{{ operation }}s{{ ' + ' if not loop.last }}{% endfor %}, 0)
    ) as undelivered_rows,
    coalesce(undelivered.parked_rows, 0) as parked_rows,
    coalesce(undelivered.no_match_rows, 0) as no_match_rows,
    coalesce(undelivered.rows_in_doubt, 0) as rows_in_doubt,
    undelivered.undelivered_since,
    runs.message as last_message
from {{ ref('reverse_etl_runs') }} runs
inner join newest on newest.sync_id = runs.sync_id and newest.fence = runs.fence
left join positions on positions.sync_id = runs.sync_id
left join undelivered on undelivered.sync_id = runs.sync_id
left join succeeded on succeeded.sync_id = runs.sync_id
