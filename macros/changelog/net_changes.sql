{# The difference of two images, at most one row per key: what leads from `from_snapshot` to `to_snapshot` (the head by default). #}
{% macro net_changes(relation, from_snapshot, to_snapshot=none, key=none, columns=none) -%}
    {%- if reverse_etl._view_snapshot_id(from_snapshot, 'from_snapshot') | int == 0 -%}
        {#- Before the first snapshot nothing stands, and the oldest rows may be a checkpoint: the image itself is the answer. -#}
        {{ reverse_etl._changes_from_nothing("'insert' as _change", relation, to_snapshot, key, columns) }}
    {%- else -%}
        {{ reverse_etl._net_changes_between(relation, from_snapshot, to_snapshot, key, columns) }}
    {%- endif -%}
{%- endmacro %}


{# The image itself, with a first column. #}
{% macro _changes_from_nothing(change, relation, to_snapshot, key, columns) -%}
(
    select {{ change }}, *
    from {% if to_snapshot is none -%}
        {{ reverse_etl.current(relation, key, columns) }}
    {%- else -%}
        {{ reverse_etl.as_of(relation, snapshot=to_snapshot, key=key, columns=columns) }}
    {%- endif %}
)
{%- endmacro %}


{#
  The first change of a key in the range tells the old image, the last one the new one. A row of the result is the key's last row,
  or for a delete its first: that holds the image which stood at `from_snapshot`.
#}
{% macro _net_changes_between(relation, from_snapshot, to_snapshot, key, columns) -%}
{%- set key_columns = reverse_etl._key(relation, key) -%}
{%- set helpers = ['_reverse_etl_is_first', '_reverse_etl_is_last', '_reverse_etl_first_change', '_reverse_etl_last_change', '_reverse_etl_first_hash'] -%}
(
    select
        case
            when _reverse_etl_last_change = 'delete' then 'delete'
            when _reverse_etl_first_change = 'insert' then 'insert'
            else 'update'
        end as _change,
        {{ reverse_etl._view_columns(columns, helpers) }}
    from (
        select
            *,
            lag(_snapshot_id) over in_order is null as _reverse_etl_is_first,
            lead(_snapshot_id) over in_order is null as _reverse_etl_is_last,
            first_value(_change) over whole as _reverse_etl_first_change,
            last_value(_change) over whole as _reverse_etl_last_change,
            first_value(_row_hash) over whole as _reverse_etl_first_hash
        from {{ reverse_etl._whole(relation) }}
        where {{ reverse_etl._view_range(from_snapshot, to_snapshot) }}
        window
            in_order as (partition by {{ key_columns }} order by _snapshot_id, _change = 'update_postimage'),
            whole as (
                partition by {{ key_columns }} order by _snapshot_id, _change = 'update_postimage'
                rows between unbounded preceding and unbounded following
            )
    )
    where case
        when _reverse_etl_last_change = 'delete' then _reverse_etl_is_first and _reverse_etl_first_change <> 'insert'
        else _reverse_etl_is_last and (_reverse_etl_first_change = 'insert' or _row_hash is distinct from _reverse_etl_first_hash)
    end
)
{%- endmacro %}
