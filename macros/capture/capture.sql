{#
  One snapshot: the difference of a query's rows and the head image, staged, checked and committed; nothing, where nothing changed.
  facts: what the header says beside the counts (see _next_header). Returns {message, code, changes}
#}
{% macro _capture(target, head, columns, query, capture_uuid, settings, facts) %}
    {%- set stage = reverse_etl._stage_relation(target, capture_uuid) -%}
    {%- call statement('stage') -%}
        create table {{ stage }} using {{ reverse_etl._private_format() }} as
        select *{{ ', ' if columns.dropped }}{{ reverse_etl._null_columns(columns.dropped) }}
        from ({{ reverse_etl['compare_' ~ settings.compare](target, head, columns, query, settings) }})
    {%- endcall -%}
    {%- set counts = reverse_etl._stage_counts(stage, head, columns) -%}
    {%- set quarantined = reverse_etl._check_keys(target, stage, counts, columns, query, settings) -%}
    {%- set changes = counts.inserts + counts.updates + counts.deletes -%}
    {%- do facts.update({'quarantined': quarantined}) -%}
    {%- if changes or head is none or quarantined != head.quarantined -%}
        {%- set header = reverse_etl._next_header(head, counts, columns, capture_uuid, facts) -%}
        {%- do reverse_etl._commit(target, stage, head, header, columns) -%}
        {%- set snapshot_id, uuid = header.snapshot_id, header.changelog_uuid -%}
    {%- else -%}
        {%- set snapshot_id, uuid = head.snapshot_id, head.changelog_uuid -%}
    {%- endif -%}
    {%- do adapter.drop_relation(stage) -%}
    {{ return({
        'message': '+' ~ counts.inserts ~ ' ~' ~ counts.updates ~ ' -' ~ counts.deletes ~ ', snapshot ' ~ snapshot_id
            ~ (' (' ~ quarantined | length ~ ' keys quarantined)' if quarantined else ''),
        'code': 'snapshot ' ~ snapshot_id ~ ' of ' ~ uuid,
        'changes': changes,
    }) }}
{% endmacro %}
