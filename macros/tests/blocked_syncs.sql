{# Syncs whose newest push was blocked by a guard or a failed test. #}
{% macro blocked_syncs(syncs=none) -%}
{%- set synced = reverse_etl._synced(syncs) -%}
{%- set ledger = ref('reverse_etl', 'reverse_etl_ledger') -%}
with refused as (
    select sync, max_by(struct(recorded_at, refusal.*), struct(seq, recorded_at)) as newest
    from (
        select *, from_json(body, 'status string, message string, sync_id string, fence bigint, relation string') as refusal
        from {{ ledger }}
        where fact = 'push_refused' and {{ reverse_etl._is_one_of(synced) }}
    )
    where {{ reverse_etl._plain_relation('refusal.relation') }} in ({% for one in synced %}{{ reverse_etl._plain_relation(reverse_etl._string(one.relation)) }}, {% endfor %}'')
    group by sync
),

{#- Clocks differ: what shows whether a run began since is its fence. -#}
started as ({{ reverse_etl._newest_runs(ledger) }})

select refused.sync, refused.newest.recorded_at as blocked_at, refused.newest.message
from refused
left join started on started.sync_id = refused.newest.sync_id
where refused.newest.status = 'blocked' and coalesce(started.fence, 0) = refused.newest.fence
{%- endmacro %}
