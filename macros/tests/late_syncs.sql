{# Syncs with a change that was captured more than `max_hours` ago and is not delivered; one that was never pushed is among them. #}
{% macro late_syncs(max_hours=24, syncs=none) -%}
{%- set synced = reverse_etl._synced(syncs) -%}
{#- A variable of the project may be a text, which `*` would repeat. -#}
{%- set hours = max_hours | float(-1) -%}
{%- if not 0 <= hours <= 1000000 -%}
    {{ reverse_etl._view_refuse('late_syncs: max_hours', "'" ~ max_hours ~ "'", 'a number of hours from 0 to 1000000', 'correct it') }}
{%- endif -%}
with captured as (
    {%- for one in synced if one.changelog %}
    select {{ reverse_etl._string(one.name) }} as sync, snapshot_id, captured_at, changelog_uuid
    from {{ reverse_etl.snapshots(one.changelog) }}
    where inserts + updates + deletes > 0
    union all
    {%- endfor %}
    select cast(null as string), cast(null as bigint), cast(null as timestamp), cast(null as string) where false
),

reached as (
    select sync, changelog_uuid, max_by(position_snapshot_id, last_run_at) as position
    from {{ ref('reverse_etl', 'reverse_etl_status') }}
    group by sync, changelog_uuid
)

select
    captured.sync,
    max(reached.position) as position,
    count(*) as snapshots_behind,
    min(captured.captured_at) as behind_since
from captured
left join reached on reached.sync = captured.sync and reached.changelog_uuid = captured.changelog_uuid
where captured.snapshot_id > coalesce(reached.position, 0)
group by captured.sync
having min(captured.captured_at) < timestampadd(second, -{{ (hours * 3600) | int }}, current_timestamp())
{%- endmacro %}
