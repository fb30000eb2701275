{#
  One row per version of a key, with the half-open interval in which it held: [valid_from, valid_to) in time of capture and in snapshot ids.
  A delete closes an interval and leaves a gap. A checkpoint is no version of its own, unless pruning removed everything before it.
    tracked  columns whose change opens an interval; its row is the last that held in it, so that the open ones are the head image
    labels   the interval in business labels as well: as_of(label=L) is the rows with valid_from_label <= L and L < valid_to_label; NULL where a rollback
             undid it, so that it holds in no label
#}
{% macro scd2(relation, key=none, columns=none, tracked=none, labels=false) -%}
{%- set added = ['valid_from_snapshot', 'valid_to_snapshot', 'valid_from', 'valid_to', 'is_current'] + (['valid_from_label', 'valid_to_label'] if labels else []) -%}
{%- do reverse_etl._refuse_taken('scd2', relation, columns, added, 'leave it out with columns=[...], and if you need it, rename it in the model') -%}
{%- set by_key = 'partition by ' ~ reverse_etl._key(relation, key) -%}
{%- set helpers = [
    '_reverse_etl_repeats', '_reverse_etl_opens', '_reverse_etl_ends', '_reverse_etl_from_snapshot', '_reverse_etl_to_snapshot', '_reverse_etl_from', '_reverse_etl_to',
] -%}
{%- set label_helpers = [
    '_reverse_etl_label', '_reverse_etl_greatest_label', '_reverse_etl_live', '_reverse_etl_restarts', '_reverse_etl_held', '_reverse_etl_from_label', '_reverse_etl_to_label',
] if labels else [] -%}
{%- set intervals = reverse_etl._scd2_intervals(reverse_etl._label_joined(relation) if labels else relation, by_key, tracked, labels) -%}
(
    select
        {{ reverse_etl._view_columns(columns, helpers + label_helpers) }},
        _reverse_etl_from_snapshot as valid_from_snapshot,
        _reverse_etl_to_snapshot as valid_to_snapshot,
        _reverse_etl_from as valid_from,
        _reverse_etl_to as valid_to,
        {%- if labels %}
        _reverse_etl_from_label as valid_from_label,
        _reverse_etl_to_label as valid_to_label,
        {%- endif %}
        _reverse_etl_to_snapshot is null as is_current
    from {{ reverse_etl._scd2_label_intervals(intervals, by_key) if labels else intervals }}
    where _reverse_etl_ends and _change <> 'delete'
)
{%- endmacro %}


{# Each row with the interval that it belongs to; a row that ends one knows what follows. #}
{% macro _scd2_intervals(relation, by_key, tracked, labels) -%}
(
    {%- if tracked or labels %}
    select
        *,
        last_value(if(_reverse_etl_opens, _snapshot_id, null), true) over in_order as _reverse_etl_from_snapshot,
        last_value(if(_reverse_etl_opens, _captured_at, null), true) over in_order as _reverse_etl_from,
        lead(_reverse_etl_opens, 1, true) over in_order as _reverse_etl_ends,
        lead(_snapshot_id) over in_order as _reverse_etl_to_snapshot,
        lead(_captured_at) over in_order as _reverse_etl_to
    from (
        select *, {{ reverse_etl._scd2_opens(tracked) }} as _reverse_etl_opens
        from {{ reverse_etl._view_versions(relation) }}
        window in_order as ({{ by_key }} order by _snapshot_id, _reverse_etl_repeats)
    )
    {%- else %}
    {#- Every change is an interval of one row: one window instead of two, and a repeated row is left out. -#}
    select
        *,
        _snapshot_id as _reverse_etl_from_snapshot,
        _captured_at as _reverse_etl_from,
        not _reverse_etl_repeats or lag(_snapshot_id) over in_order is null as _reverse_etl_opens,
        not _reverse_etl_repeats or lag(_snapshot_id) over in_order is null as _reverse_etl_ends,
        lead(if(_reverse_etl_repeats, null, _snapshot_id)) ignore nulls over in_order as _reverse_etl_to_snapshot,
        lead(if(_reverse_etl_repeats, null, _captured_at)) ignore nulls over in_order as _reverse_etl_to
    from {{ reverse_etl._view_versions(relation) }}
    {%- endif %}
    window in_order as ({{ by_key }} order by _snapshot_id, _reverse_etl_repeats)
)
{%- endmacro %}


{# A change of the tracked columns, and where the life of a key begins or ends. Without any: each row that repeats none before it. #}
{% macro _scd2_opens(tracked) -%}
    {%- if not tracked -%} not _reverse_etl_repeats or lag(_snapshot_id) over in_order is null {%- else -%}
    {%- set values = 'struct(' ~ reverse_etl._columns([tracked] if tracked is string else tracked) ~ ')' -%}
    _change = 'delete' or lag(_change, 1, 'delete') over in_order = 'delete' or {{ values }} is distinct from lag({{ values }}) over in_order
    {%- endif -%}
{%- endmacro %}


{#
  A late correction carries an older label than the row before it: from its label on, it replaces that row. So the label of an interval ends
  with the smallest label that any later one carries, and an interval that a correction covers is empty. What was undone carries none; the full image of
  a rollback says that a row holds again. After a prune, one that opens may repeat a row of any label up to it: only from the greatest of them on did it hold.
#}
{% macro _scd2_label_intervals(intervals, by_key) -%}
(
    select
        *,
        min(_reverse_etl_held) over ({{ by_key }}, _reverse_etl_from_snapshot) as _reverse_etl_from_label,
        min(_reverse_etl_held) over ({{ by_key }} order by _reverse_etl_from_snapshot desc range between unbounded preceding and 1 preceding) as _reverse_etl_to_label
    from (
        select
            *,
            if(
                _reverse_etl_live and (_reverse_etl_opens or not _reverse_etl_repeats or _reverse_etl_restarts),
                if(_reverse_etl_opens and _reverse_etl_repeats, _reverse_etl_greatest_label, _reverse_etl_label), null
            ) as _reverse_etl_held
        from {{ intervals }}
    )
)
{%- endmacro %}
