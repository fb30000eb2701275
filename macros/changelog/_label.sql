{#
  Business labels. A snapshot without one carries the greatest label before it; before the first label that is the empty text, below every label.
#}

{# A relation with the label of each row's snapshot. The headers are few: they are broadcast, and the rows are not shuffled for them. #}
{% macro _label_joined(relation) -%}
(
    select /*+ broadcast(_reverse_etl_labels) */ *
    from {{ relation }}
    join (
        select _snapshot_id, coalesce(_header.label, max(_header.label) over (order by _snapshot_id), '') as _reverse_etl_label
        from {{ relation }}
        where _change in ('snapshot', 'pruned')
    ) as _reverse_etl_labels using (_snapshot_id)
)
{%- endmacro %}


{#
  The rows that the image as of a label is made of: all before the first snapshot of a greater label, and the late corrections after it.
  A checkpoint after it holds rows of a greater label.
#}
{% macro _label_until(relation, label) -%}
    (
        _snapshot_id < {{ reverse_etl._label_first_greater(relation, label) }}
        or _change <> 'checkpoint' and {{ reverse_etl._label_corrects(relation, label) }}
    )
{%- endmacro %}

{# The snapshot whose image that is, and of those that were pruned, the corrections. #}
{% macro _label_at(relation, label) -%}
    {%- set first_greater = reverse_etl._label_first_greater(relation, label) -%}
    (_snapshot_id = {{ first_greater }} - 1 or _change = 'pruned' and _snapshot_id > {{ first_greater }} and _header.label <= {{ reverse_etl._string(label) }})
{%- endmacro %}

{% macro _label_first_greater(relation, label) -%}
    (select coalesce(min(_snapshot_id), 9223372036854775807) {{ reverse_etl._label_headers(relation) }} > {{ reverse_etl._string(label) }})
{%- endmacro %}

{% macro _label_corrects(relation, label) -%}
    array_contains(
        (select collect_list(_snapshot_id) {{ reverse_etl._label_headers(relation) }} <= {{ reverse_etl._string(label) }} and _snapshot_id > {{ reverse_etl._label_first_greater(relation, label) }}),
        _snapshot_id
    )
{%- endmacro %}

{% macro _label_headers(relation) -%} from {{ relation }} where _change in ('snapshot', 'pruned') and _header.label {%- endmacro %}
