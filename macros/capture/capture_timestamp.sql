{#
  Rows whose `updated_at` is not older than the newest that was read before, less an overlap for those that were committed late.
    updated_at  column of the model
    overlap     interval, as in SQL: '1 hour'; for numbers a number
    deleted     boolean column of the model: true deletes the row; it is no column of the changelog
  Rows that vanish without a trace are found by full_compare_every.
#}
{% macro capture_timestamp(capture) %}
    {%- set options = capture.options -%}
    {%- set updated_at = reverse_etl._quote(options.updated_at) -%}
    {%- set type = reverse_etl._position_type(capture, 'updated_at') -%}
    {#- Another name than `timestamp/`: positions of that one may lie beyond what was read. -#}
    {%- set name = 'updated_at/' ~ options.updated_at -%}
    {%- set since = (capture.since or {}).get(name) -%}
    {%- set live = 'not coalesce(' ~ reverse_etl._quote(options.deleted) ~ ', false)' if options.deleted else 'true' -%}
    {%- set candidates -%}
        select {{ reverse_etl._columns(capture.columns.names) }}{{ ', ' ~ updated_at if options.updated_at not in capture.columns.names }},
            not ({{ live }}) as _gone, current_timestamp() as _now
        from {{ capture.query.name }}
        {%- if since is not none %}
        where {{ updated_at }} >= {{ reverse_etl._position_literal(since, type, options.overlap) }} or {{ updated_at }} is null
        {%- endif -%}
    {%- endset -%}
    {{ return({
        'problem': options.updated_at ~ ' was not read before' if since is none else none,
        'candidates': candidates, 'measures': {name: reverse_etl._position_text(updated_at, type)}, 'carries_rows': true,
        'live': live if options.deleted else none,
    }) }}
{% endmacro %}
