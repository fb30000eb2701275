{# The model's rows as of one snapshot, given by its id ("as known then"), by a time, or by a business label ("as corrected"). #}
{% macro as_of(relation, snapshot=none, timestamp=none, label=none, key=none, columns=none) -%}
    {{ reverse_etl._view_image(
        relation, key, columns, until=reverse_etl._as_of_until(relation, snapshot, timestamp, label), at=reverse_etl._as_of_at(relation, snapshot, timestamp, label)
    ) }}
{%- endmacro %}


{% macro _as_of_until(relation, snapshot, timestamp, label) -%}
    {%- set given = [snapshot, timestamp, label] | reject('none') | list | length -%}
    {%- if given != 1 -%}
        {{ reverse_etl._view_refuse(
            'as_of', given ~ ' of snapshot, timestamp and label', 'exactly one', 'reverse_etl.as_of(' ~ relation ~ ', snapshot=1)'
        ) }}
    {%- elif snapshot is not none -%}
        _snapshot_id <= {{ reverse_etl._view_snapshot_id(snapshot, 'snapshot') }}
    {%- elif timestamp is not none -%}
        {#- A typed literal: a text that is no time is an error, where a cast would give NULL and so an empty image. -#}
        _snapshot_id <= {{ reverse_etl._as_of_time(relation, timestamp) }}
    {%- else -%}
        {{ reverse_etl._label_until(relation, label) }}
    {%- endif -%}
{%- endmacro %}


{# The snapshots whose image that is. #}
{% macro _as_of_at(relation, snapshot, timestamp, label) -%}
    {%- if snapshot is not none -%} _snapshot_id = {{ reverse_etl._view_snapshot_id(snapshot, 'snapshot') }}
    {%- elif timestamp is not none -%} _snapshot_id = {{ reverse_etl._as_of_time(relation, timestamp) }}
    {%- else -%} {{ reverse_etl._label_at(relation, label) }}
    {%- endif -%}
{%- endmacro %}

{% macro _as_of_time(relation, timestamp) -%}
    (select max(_snapshot_id) from {{ relation }} where _captured_at <= timestamp {{ reverse_etl._string(timestamp) }})
{%- endmacro %}
