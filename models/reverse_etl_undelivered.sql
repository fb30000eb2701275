{{ reverse_etl._refuse_other_materialization(['ledger_view', 'view']) }}
{#
  The newest run restates the rows that earlier runs left undelivered; each wave that it acknowledged replaces those of its buckets.
#}
{% set undelivered = 'array<struct<key:string,bucket:bigint,changed:bigint,operation:string,outcome:string,reason:string,attempts:bigint,maybe:boolean,doubt:boolean,first_failed_at:timestamp,next_attempt_at:timestamp>>' %}

with newest as ({{ reverse_etl._newest_runs(ref('reverse_etl_ledger')) }}),

facts as (
    select
        ledger.sync_id,
        ledger.fence,
        ledger.fact,
        max(nullif(ledger.sync, '')) over (partition by ledger.sync_id) as sync,
        from_json(ledger.body, 'lo bigint, hi bigint, undelivered {{ undelivered }}, delivered array<struct<lo:bigint,hi:bigint>>') as fact_body
    from {{ ref('reverse_etl_ledger') }} ledger
    inner join newest on newest.sync_id = ledger.sync_id and newest.fence = ledger.fence
    where ledger.fact in ('run_started', 'claims_settled', 'wave_acknowledged')
),

replaced as (
    select sync_id, fact_body.lo as lo, fact_body.hi as hi from facts where fact = 'wave_acknowledged'
    union all
    select sync_id, settled.lo, settled.hi from facts lateral view explode(fact_body.delivered) as settled where fact = 'claims_settled'
),

listed as (
    select sync_id, sync, fact, undelivered_row
    from facts lateral view explode(fact_body.undelivered) as undelivered_row
    where fact in ('run_started', 'wave_acknowledged')
)

select
    listed.sync_id,
    listed.sync,
    listed.undelivered_row.key as row_key,
    listed.undelivered_row.operation,
    listed.undelivered_row.outcome,
    listed.undelivered_row.reason,
    listed.undelivered_row.attempts,
    listed.undelivered_row.first_failed_at,
    listed.undelivered_row.next_attempt_at,
    listed.undelivered_row.changed as snapshot_id,
    listed.undelivered_row.doubt as in_doubt
from listed
left anti join replaced
    on listed.fact = 'run_started'
    and replaced.sync_id = listed.sync_id
    and listed.undelivered_row.bucket >= replaced.lo
    and listed.undelivered_row.bucket < replaced.hi
