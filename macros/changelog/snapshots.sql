{# The header rows: one row per snapshot. #}
{% macro snapshots(relation) -%}
(
    select
        _snapshot_id as snapshot_id,
        _captured_at as captured_at,
        _header.kind as kind,
        _header.label as label,
        _header.savepoint as savepoint,
        _header.frozen as is_frozen,
        _header.inserts as inserts,
        _header.updates as updates,
        _header.deletes as deletes,
        _header.live_rows as live_rows,
        _header.base = _snapshot_id as is_checkpoint,
        _header.base as base,
        _header.quarantined as quarantined,
        _header.positions as positions,
        _header.drift as drift,
        _header.key_columns as key_columns,
        _header.columns as columns,
        _header.invocation_id as invocation_id,
        _header.target_name as target_name,
        _header.package_version as package_version,
        _header.changelog_uuid as changelog_uuid,
        _header.capture_uuid as capture_uuid
    from {{ relation }}
    where _change = 'snapshot'
)
{%- endmacro %}
