{# Every change as one row, with the model's columns `before` and `after` it as structs; before an insert and after a delete there is none. #}
{% macro changes_side_by_side(relation, from_snapshot=none, to_snapshot=none, key=none, columns=none) -%}
(
    select
        if(_change = 'update_postimage', 'update', _change) as _change,
        _snapshot_id,
        _captured_at,
        case _change when 'update_postimage' then _reverse_etl_preimage when 'delete' then _reverse_etl_image end as before,
        if(_change = 'delete', null, _reverse_etl_image) as after
    from (
        select
            _change, _snapshot_id, _captured_at, _reverse_etl_image,
            lag(_reverse_etl_image) over ({{ 'partition by ' ~ reverse_etl._key(relation, key) }} order by _snapshot_id, _change = 'update_postimage') as _reverse_etl_preimage
        from (
            select *, struct({{ reverse_etl._view_columns(columns) }}) as _reverse_etl_image
            from {{ relation }}
            where {{ reverse_etl._view_range(from_snapshot, to_snapshot) }}
        )
    )
    where _change <> 'update_preimage'
)
{%- endmacro %}
