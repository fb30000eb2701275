{#
  One snapshot: the difference of a query's rows and the head image, staged, checked and committed; nothing, where nothing changed.
  facts: what the header says beside the counts (see _next_header); drift_against: candidates that a reconcile ought to have needed no more than.
  Returns {message, code, changes, drift}
#}
{% macro _capture(target, head, columns, query, capture_uuid, settings, facts, drift_against=none) %}
    {%- do query.setdefault('rows', query.name) -%}
    {%- set stage = reverse_etl._stage_relation(target, capture_uuid) -%}
    {%- call statement('stage') -%}
        create table {{ stage }} using {{ reverse_etl._private_format() }} as
        select *{{ ', ' if columns.dropped }}{{ reverse_etl._null_columns(columns.dropped) }}
        from (
            {{ reverse_etl['compare_' ~ settings.compare](target, head, columns, query, settings) }}
            {%- if query.tombstones %}
            union all
            select 'tombstone', {{ reverse_etl._columns(columns.names) }}, cast(null as bigint), cast(null as bigint) from {{ query.tombstones }}
            {%- endif %}
        )
    {%- endcall -%}
    {%- set counts = reverse_etl._stage_counts(stage, head, columns) -%}
    {%- set quarantined = reverse_etl._check_keys(target, stage, counts, columns, query, settings) -%}
    {%- set changes = counts.inserts + counts.updates + counts.deletes -%}
    {%- do facts.update({'quarantined': quarantined}) -%}
    {%- if drift_against -%}{%- do facts.update({'drift': reverse_etl._drift(stage, drift_against, columns)}) -%}{%- endif -%}
    {%- if changes or counts.tombstones or reverse_etl._says_more(facts, head) -%}
        {%- set header = reverse_etl._next_header(head, counts, columns, capture_uuid, facts) -%}
        {%- do reverse_etl._commit(target, stage, head, header, columns) -%}
    {%- else -%}
        {%- set header = head -%}
    {%- endif -%}
    {%- do adapter.drop_relation(stage) -%}
    {{ return({
        'message': '+' ~ counts.inserts ~ ' ~' ~ counts.updates ~ ' -' ~ counts.deletes ~ ', snapshot ' ~ header.snapshot_id
            ~ (' (' ~ quarantined | length ~ ' keys quarantined)' if quarantined else '') ~ (' (drift: ' ~ facts.drift ~ ' changes that were not proposed)' if facts.drift else ''),
        'code': 'snapshot ' ~ header.changed ~ ' of ' ~ header.changelog_uuid,
        'changes': changes,
        'drift': facts.drift,
    }) }}
{% endmacro %}


{# Without changes a header is worth a commit where it says something new; captures since the last reconcile count by their headers. #}
{% macro _says_more(facts, head) %}
    {{ return(
        head is none or facts.kind != 'capture' or facts.quarantined != head.quarantined or facts.get('positions', head.positions) != head.positions
        or facts.get('since_reconcile', 0) > 0
    ) }}
{% endmacro %}
