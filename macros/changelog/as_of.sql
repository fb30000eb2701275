{# The model's rows as of one snapshot, given by its id ("as known then"), by a time, or by a business label ("as corrected"). #}
{% macro as_of(relation, snapshot=none, timestamp=none, label=none, key=none, columns=none) -%}
    {%- set given = [snapshot, timestamp, label] | reject('none') | list | length -%}
    {%- if given != 1 -%}
        {{ reverse_etl._view_refuse(
            'as_of', given ~ ' of snapshot, timestamp and label', 'exactly one', 'reverse_etl.as_of(' ~ relation ~ ', snapshot=1)'
        ) }}
    {%- elif label is not none -%}
        {{ reverse_etl._view_image(
            relation, key, columns, until="if(_change = 'checkpoint', _reverse_etl_fills, _reverse_etl_counts)", at='_reverse_etl_at',
            rows=reverse_etl._label_counted(relation, label), helpers=['_reverse_etl_counts', '_reverse_etl_fills', '_reverse_etl_at']
        ) }}
    {%- else -%}
        {%- set newest = reverse_etl._view_snapshot_id(snapshot, 'snapshot') if snapshot is not none else reverse_etl._as_of_time(relation, timestamp) -%}
        {{ reverse_etl._view_image(relation, key, columns, until='_snapshot_id <= ' ~ newest, at='_snapshot_id = ' ~ newest) }}
    {%- endif -%}
{%- endmacro %}


{# A typed literal: a text that is no time is an error, where a cast would give NULL and so an empty image. #}
{% macro _as_of_time(relation, timestamp) -%}
    (select max(_snapshot_id) from {{ reverse_etl._whole(relation) }} where _captured_at <= timestamp {{ reverse_etl._string(timestamp) }})
{%- endmacro %}
