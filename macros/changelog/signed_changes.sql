{#
  What to add to sums and counts: each row that came with `_sign` 1, each row that went with `_sign` -1. An update is one of each, so a row that
  moves to another group leaves the former one. sum(_sign) and sum(_sign * amount) over (a, b] lead from those of snapshot a to those of b.
#}
{% macro signed_changes(relation, from_snapshot=0, to_snapshot=none, key=none, columns=none) -%}
{%- if reverse_etl._view_snapshot_id(from_snapshot, 'from_snapshot') | int == 0 -%}
{#- Before the first snapshot nothing stands, and pruning may have removed the oldest changes: the image itself is the answer. -#}
{{ reverse_etl._changes_from_nothing('1 as _sign', relation, to_snapshot, key, columns) }}
{%- else -%}
(
    select if(_change in ('insert', 'update_postimage'), 1, -1) as _sign, {{ reverse_etl._view_columns(columns) }}
    from {{ relation }}
    where {{ reverse_etl._view_range(from_snapshot, to_snapshot) }}
)
{%- endif -%}
{%- endmacro %}
