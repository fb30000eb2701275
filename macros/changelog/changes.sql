{# Every change, row by row: an update as its pre-image and its post-image. #}
{% macro changes(relation, from_snapshot=none, to_snapshot=none, columns=none) -%}
(
    select _change, _snapshot_id, _captured_at, {{ reverse_etl._view_columns(columns) }}
    from {{ relation }}
    where {{ reverse_etl._view_range(from_snapshot, to_snapshot) }}
)
{%- endmacro %}
