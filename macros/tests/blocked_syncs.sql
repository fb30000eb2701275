{# Syncs whose newest push was blocked by a guard or a failed test. #}
{% macro blocked_syncs(syncs=none) -%}
{%- set synced = reverse_etl._synced(syncs) -%}
{%- set ledger = ref('reverse_etl', 'reverse_etl_ledger') -%}
with refused as (
    select sync, max(recorded_at) as blocked_at, from_json(max_by(body, recorded_at), 'status string, message string') as told
    from {{ ledger }}
    where fact = 'push_refused' and {{ reverse_etl._is_one_of(synced) }}
    group by sync
),

started as (select sync, max(recorded_at) as started_at from {{ ledger }} where fact = 'run_started' group by sync)

select refused.sync, refused.blocked_at, refused.told.message
from refused
left join started on started.sync = refused.sync
where refused.told.status = 'blocked' and (started.started_at is null or started.started_at < refused.blocked_at)
{%- endmacro %}
