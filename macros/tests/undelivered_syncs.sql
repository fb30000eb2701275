{#
  Syncs with more than `max_rows` undelivered rows; in update_only, rows that the destination does not have are none. Only the newest identity of a sync counts:
  what another destination or object lacked is not sent any more. So do only runs over the changelog of now: targets may share a ledger.
#}
{% macro undelivered_syncs(max_rows=0, syncs=none) -%}
{%- set synced = reverse_etl._synced(syncs) -%}
with changelogs as (
    {%- for one in synced if one.changelog %}
    select {{ reverse_etl._string(one.name) }} as sync, max_by(changelog_uuid, snapshot_id) as changelog_uuid
    from {{ reverse_etl.snapshots(one.changelog) }}
    union all
    {%- endfor %}
    select cast(null as string), cast(null as string) where false
),

newest as (
    select status.sync, max_by(status.sync_id, status.last_run_at) as sync_id
    from {{ ref('reverse_etl', 'reverse_etl_status') }} status
    inner join changelogs on changelogs.sync = status.sync and changelogs.changelog_uuid = status.changelog_uuid
    group by status.sync
)

select newest.sync, status.undelivered_rows, status.parked_rows, status.undelivered_since
from newest
inner join {{ ref('reverse_etl', 'reverse_etl_status') }} status on status.sync_id = newest.sync_id
where status.undelivered_rows > {{ max_rows | int }}
{%- endmacro %}
