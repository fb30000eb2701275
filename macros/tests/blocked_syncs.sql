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
started as ({{ reverse_etl.newest_run_of_names(ledger) }})

select refused.sync, refused.blocked_at, refused.told.message
from refused
left join started on started.sync = refused.sync
where refused.told.status = 'blocked'
    and if(refused.told.after is null, coalesce(started.started_at < refused.blocked_at, true), coalesce(started.run_id, '') = refused.told.after)
{%- endmacro %}
