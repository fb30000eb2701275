{# Syncs whose newest push was blocked by a guard or a failed test. #}
{% macro blocked_syncs(syncs=none) -%}
{%- set synced = reverse_etl._synced(syncs) -%}
{%- set ledger = ref('reverse_etl', 'reverse_etl_ledger') -%}
with refused as (
    select sync, max_by(recorded_at, struct(seq, recorded_at)) as blocked_at, from_json(max_by(body, struct(seq, recorded_at)), 'status string, message string, after string') as told
    from {{ ledger }}
    where fact = 'push_refused' and {{ reverse_etl._is_one_of(synced) }}
    group by sync
),

{#- Clocks differ: what tells whether a run began since is the run itself. -#}
started as (
    select sync, max_by(newest.run_id, newest.recorded_at) as run_id, max(newest.recorded_at) as started_at
    from (select sync, max_by(struct(run_id, recorded_at), fence) as newest from {{ ledger }} where fact = 'run_started' group by sync, sync_id)
    group by sync
)

select refused.sync, refused.blocked_at, refused.told.message
from refused
left join started on started.sync = refused.sync
where refused.told.status = 'blocked'
    and coalesce(if(refused.told.after <> '', started.run_id = refused.told.after, started.started_at < refused.blocked_at), true)
{%- endmacro %}
