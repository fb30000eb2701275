{#
  Business labels. A snapshot without one carries the greatest label before it; before the first label that is the empty text, below every label.
  What a rollback undid counts for no label; the headers since then name it (`undone`).
#}

{# Of each snapshot: its label, the greatest live one up to it, whether it is live (no rollback undid it), and whether it is a rollback, whose full image stands for all that is live before it. #}
{% macro _label_snapshots(relation) -%}
{%- set greatest = "coalesce(max(if(_reverse_etl_live, _reverse_etl_header.label, null)) over (order by _snapshot_id), '')" -%}
(
    select
        _snapshot_id,
        _reverse_etl_live,
        _reverse_etl_live and coalesce(_reverse_etl_header.kind = 'rollback' and _reverse_etl_header.base = _snapshot_id, false) as _reverse_etl_restarts,
        coalesce(_reverse_etl_header.label, {{ greatest }}) as _reverse_etl_label,
        {{ greatest }} as _reverse_etl_greatest_label
    from (
        select *, not coalesce(exists(_reverse_etl_undone, undone -> _snapshot_id between undone.first and undone.last), false) as _reverse_etl_live
        from (
            select *, max_by(_reverse_etl_header.undone, _snapshot_id) over () as _reverse_etl_undone
            from (
                {#- By JSON, for an older header has fewer fields. #}
                select _snapshot_id, from_json(to_json(_header), 'label string, kind string, base bigint, undone array<struct<first:bigint,last:bigint>>') as _reverse_etl_header
                from {{ reverse_etl._whole(relation) }}
                where _change in ('snapshot', 'pruned')
            )
        )
    )
)
{%- endmacro %}


{# A relation with what `_label_snapshots` says of each row's snapshot. The headers are few: they are broadcast, and the rows are not shuffled for them. #}
{% macro _label_joined(relation) -%}
(
    select /*+ broadcast(_reverse_etl_labels) */ *
    from {{ reverse_etl._whole(relation) }}
    join {{ reverse_etl._label_snapshots(relation) }} as _reverse_etl_labels using (_snapshot_id)
)
{%- endmacro %}


{#
  A relation with what each row's snapshot counts for the image as of a label: all live ones before the first of a greater label, from the newest rollback
  among them on, and the late corrections after it.
    _reverse_etl_counts  its changes count
    _reverse_etl_fills   its full image does, too: it holds nothing that was undone later, nor rows of a greater label
    _reverse_etl_at      the image is not known if it was pruned, and is that of a savepoint if it is one
#}
{% macro _label_counted(relation, label) -%}
{%- set label = reverse_etl._string(label) -%}
(
    select /*+ broadcast(_reverse_etl_counted) */ *
    from {{ reverse_etl._whole(relation) }}
    join (
        select
            _snapshot_id,
            _reverse_etl_counts,
            _reverse_etl_counts and _snapshot_id < _reverse_etl_greater
                and _snapshot_id < coalesce(min(if(not _reverse_etl_live and _snapshot_id > _reverse_etl_start, _snapshot_id, null)) over (), _reverse_etl_greater) as _reverse_etl_fills,
            _reverse_etl_counts and _snapshot_id >= max(if(_reverse_etl_counts and _snapshot_id < _reverse_etl_greater, _snapshot_id, 0)) over () as _reverse_etl_at
        from (
            select *, _reverse_etl_live and if(_snapshot_id < _reverse_etl_greater, _snapshot_id >= _reverse_etl_start, _reverse_etl_label <= {{ label }}) as _reverse_etl_counts
            from (
                select *, max(if(_reverse_etl_restarts and _snapshot_id < _reverse_etl_greater, _snapshot_id, 0)) over () as _reverse_etl_start
                from (
                    select *, coalesce(min(if(_reverse_etl_live and _reverse_etl_label > {{ label }}, _snapshot_id, null)) over (), 9223372036854775807) as _reverse_etl_greater
                    from {{ reverse_etl._label_snapshots(relation) }}
                )
            )
        )
    ) as _reverse_etl_counted using (_snapshot_id)
)
{%- endmacro %}
