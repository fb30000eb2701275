with newest as ({{ reverse_etl._newest_runs(ref('reverse_etl_ledger')) }}),

facts as (
    select
        ledger.sync_id,
        ledger.fact,
        from_json(ledger.body, 'lo bigint, hi bigint, head bigint, positions array<struct<snapshot:bigint>>, delivered array<struct<lo:bigint,hi:bigint>>') as fact_body
    from {{ ref('reverse_etl_ledger') }} ledger
    inner join newest on newest.sync_id = ledger.sync_id and newest.fence = ledger.fence
),

positions as (
    select
        sync_id,
        sum(case when fact = 'wave_acknowledged' then fact_body.hi - fact_body.lo else 0 end) as acknowledged_buckets,
        max(case when fact = 'run_started' then fact_body.head end) as head,
        max(case when fact = 'run_started' then array_min(transform(fact_body.positions, place -> place.snapshot)) end) as oldest_position
    from facts
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
    if(positions.acknowledged_buckets = 65536, positions.head, positions.oldest_position) as position_snapshot_id,
    runs.status as last_run_status,
    runs.started_at as last_run_at,
    succeeded.last_success_at,
    coalesce(undelivered.undelivered_rows, 0) as undelivered_rows,
    coalesce(undelivered.parked_rows, 0) as parked_rows,
    coalesce(undelivered.no_match_rows, 0) as no_match_rows,
    coalesce(undelivered.rows_in_doubt, 0) as rows_in_doubt,
    undelivered.undelivered_since,
    runs.message as last_message
from {{ ref('reverse_etl_runs') }} runs
inner join newest on newest.sync_id = runs.sync_id and newest.fence = runs.fence
inner join positions on positions.sync_id = runs.sync_id
left join undelivered on undelivered.sync_id = runs.sync_id
left join succeeded on succeeded.sync_id = runs.sync_id
