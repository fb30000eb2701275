{#
  One row per version of a key, with the half-open interval in which it held: [valid_from, valid_to) in time of capture and in snapshot ids.
  A delete closes an interval and leaves a gap. A checkpoint is no version of its own, unless pruning removed everything before it.
#}
{% macro scd2(relation, key=none, columns=none) -%}
{%- set key_columns = reverse_etl._key(relation, key) -%}
(
    select
        {{ reverse_etl._view_columns(columns, ['_reverse_etl_until_snapshot', '_reverse_etl_until', '_reverse_etl_is_repeated']) }},
        _snapshot_id as valid_from_snapshot,
        _reverse_etl_until_snapshot as valid_to_snapshot,
        _captured_at as valid_from,
        _reverse_etl_until as valid_to,
        _reverse_etl_until_snapshot is null as is_current
    from (
        select
            *,
            lead(if(_change = 'checkpoint', null, _snapshot_id)) ignore nulls over in_order as _reverse_etl_until_snapshot,
            lead(if(_change = 'checkpoint', null, _captured_at)) ignore nulls over in_order as _reverse_etl_until,
            _change = 'checkpoint' and lag(_snapshot_id) over in_order is not null as _reverse_etl_is_repeated
        from {{ relation }}
        where _change in ('insert', 'update_postimage', 'delete', 'checkpoint')
        window in_order as (partition by {{ key_columns }} order by _snapshot_id, _change = 'checkpoint')
    )
    where _change <> 'delete' and not _reverse_etl_is_repeated
)
{%- endmacro %}
