{# Changelogs of syncs whose newest reconcile found more than `max_rows` changes that no candidate key had led to. #}
{% macro drifted_changelogs(max_rows=0, syncs=none) -%}
{%- set synced = reverse_etl._synced(syncs) -%}
select changelog, snapshot_id, captured_at, drift
from (
    {%- for changelog in synced | map(attribute='changelog') | select | unique %}
    select {{ reverse_etl._string(changelog.identifier) }} as changelog, max(snapshot_id) as snapshot_id,
        max(captured_at) as captured_at, max_by(drift, snapshot_id) as drift
    from {{ reverse_etl.snapshots(changelog) }}
    where drift is not null
    union all
    {%- endfor %}
    select cast(null as string), cast(null as bigint), cast(null as timestamp), cast(null as bigint) where false
)
where drift > {{ max_rows | int }}
{%- endmacro %}
