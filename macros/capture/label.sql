{#
  Business snapshots: the changes of one capture, split by the label of their rows; one snapshot for each, the smaller label first.
    label.by     SQL over the columns of the changelog; as text its values sort as the labels do
    label.grace  interval: a later label opens when the clock, or a row that is known, is so far behind its first row; until then its rows are kept aside
    label.at     with grace: SQL for the time of a row; rows without one do not wait
    label.late   fail, or open: a row of a label that is closed fails the capture, until the operation reopen names that label, or goes to the open one
  A deleted row has no label of its own: it goes to the open one.

  Returns {groups: [{label, where, inserts, updates, deletes}], kept_aside: number of rows}. Without labels: one group of everything.
#}
{% macro _groups(stage, head, counts, settings) %}
    {%- if not settings.label -%}
        {{ return({'groups': [{'label': none, 'where': none, 'inserts': counts.inserts, 'updates': counts.updates, 'deletes': counts.deletes}], 'kept_aside': 0}) }}
    {%- endif -%}
    {%- set labels = reverse_etl._stage_labels(stage, settings) -%}
    {%- set state = {'open': head.open_label if head is not none else none, 'kept_aside': 0} -%}
    {%- set reopened = reverse_etl._reopened(head) -%}
    {%- set groups, late = [], [] -%}
    {%- for one in labels -%}
        {%- set rest = labels[loop.index0:] -%}
        {%- if one.label is none -%}
            {%- do reverse_etl._refuse_labels(stage, settings, (one.inserts + one.updates) ~ ' changed rows without a label', 'one for each row', 'correct label.by, or the rows') -%}
        {%- elif state.open is not none and one.label < state.open and not reverse_etl._in_ranges(one.label, reopened) -%}
            {%- do late.append(one) -%}
        {%- elif state.open is none or one.label <= state.open or not settings.label.grace or not state.kept_aside and reverse_etl._has_closed(labels, rest, settings.label.known_to) -%}
            {%- do groups.append({'label': one.label, 'labels': [one.label], 'inserts': one.inserts, 'updates': one.updates, 'deletes': 0}) -%}
            {%- if state.open is none or one.label > state.open -%}{%- do state.update({'open': one.label}) -%}{%- endif -%}
        {%- else -%}
            {%- do state.update({'kept_aside': state.kept_aside + one.inserts + one.updates}) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if late and settings.label.late != 'open' -%}
        {%- do reverse_etl._refuse_labels(
            stage, settings, (late | sum(attribute='inserts') + late | sum(attribute='updates')) ~ ' changed rows of closed labels (' ~ late | map(attribute='label') | join(', ') ~ ')',
            'none before ' ~ state.open, reverse_etl._command('reopen', 'model: ' ~ reverse_etl._named(model) ~ ', label: ' ~ tojson(late | map(attribute='label') | list)) ~ ', or set label.late: open'
        ) -%}
    {%- endif -%}
    {%- if late or counts.deletes or counts.tombstones or not groups -%}
        {%- if not groups or groups[-1].label != state.open -%}
            {%- do groups.append({'label': state.open, 'labels': [], 'inserts': 0, 'updates': 0, 'deletes': 0}) -%}
        {%- endif -%}
        {%- for one in late -%}
            {%- do groups[-1].labels.append(one.label) -%}
            {%- do groups[-1].update({'inserts': groups[-1].inserts + one.inserts, 'updates': groups[-1].updates + one.updates}) -%}
        {%- endfor -%}
        {%- do groups[-1].update({'deletes': counts.deletes}) -%}
    {%- endif -%}
    {%- for group in groups -%}
        {%- set of_label = '_reverse_etl_label in (' ~ reverse_etl._strings(group.labels) ~ ')' if group.labels else 'false' -%}
        {%- do group.update({'where': '(' ~ of_label ~ ')' ~ (" or _stage in ('delete', 'tombstone')" if loop.last else '')}) -%}
    {%- endfor -%}
    {%- if groups | length == 1 and not state.kept_aside -%}{%- do groups[0].update({'where': none}) -%}{%- endif -%}
    {{ return({'groups': groups, 'kept_aside': state.kept_aside}) }}
{% endmacro %}


{#
  The parts in which the changes are captured, one after the other: [{events: a table of them, part: filter, until: label}], the last one everything. Where
  events lead a key from a label to a later one, the snapshot of the first shows the key as it was then, so what comes before is captured by itself, as by a
  run in between. A delete goes with the row before it, if another one follows; the last events of a key, deletes without a row after them, to the last part.
  Of images there is one row for each key, so it concerns feeds alone, whose events are read once.
#}
{% macro _parts_by_label(target, head, columns, query, capture_uuid, settings) %}
    {%- if not settings.label or settings.capture.strategy != 'feed' -%}{{ return([none]) }}{%- endif -%}
    {%- set events = reverse_etl._temporary_relation(target, '__events_', capture_uuid) -%}
    {%- call statement('events') -%}
        create table {{ events }} using {{ reverse_etl._private_format() }} as {{ reverse_etl._feed_events_by_label(reverse_etl._asked(target, head, columns, query, settings, none)) }}
    {%- endcall -%}
    {%- set at = 'cast(' ~ settings.label.at ~ ' as timestamp)' if settings.label.grace else 'cast(null as timestamp)' -%}
    {%- set left = run_query(
        'select _reached, (select unix_micros(max(' ~ at ~ ')) from ' ~ events ~ "), (select bool_or(_operation = 'unknown') from " ~ events ~ ') from (select _reached, max(_reached) over (partition by ' ~ reverse_etl._columns(columns.key)
        ~ ') as _last from ' ~ events ~ ') where _reached < _last group by 1 order by 1'
    ).rows -%}
    {#- Before the first part is committed. -#}
    {%- if left and left[0][2] -%}
        {%- do adapter.drop_relation(events) -%}
        {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ': ' ~ reverse_etl._nothing_captured(settings) ~ '. capture.' ~ reverse_etl._unknown_operation({'options': settings.capture})) }}
    {%- endif -%}
    {%- set parts = [] -%}
    {%- for row in left -%}
        {%- set until = reverse_etl._string(row[0]) -%}
        {%- set upto = ' and _next_label <= ' ~ reverse_etl._string(left[loop.index][0]) if not loop.last else '' -%}
        {%- do parts.append({
            'events': events, 'until': row[0] | string,
            'part': "(_reached <= " ~ until ~ " and (_operation <> 'delete' or _next_label is not null) or _reached is null and _next_label > " ~ until ~ upto ~ ')',
        }) -%}
        {%- do settings.label.update({'known_to': row[1]}) -%}
    {%- endfor -%}
    {{ return(parts + [{'events': events, 'until': none, 'part': 'true'}]) }}
{% endmacro %}


{# The ranges of labels that are closed and may take rows of the next capture: [[first, last], ...]. The version before kept one label, as it is. #}
{% macro _reopened(head) %}
    {%- set text = (head.reopened if head is not none else none) or '[]' -%}
    {{ return(fromjson(text) if text.startswith('[') else [[text, text]]) }}
{% endmacro %}


{% macro _in_ranges(label, ranges) %}
    {%- for first, last in ranges if first <= label and label <= last -%}{{ return(true) }}{%- endfor -%}
    {{ return(false) }}
{% endmacro %}


{#
  The rows of a stage, each changed one with its label. It is computed once: a row for which a label like current_date() gives another value when it is read
  again would be left out, or captured twice.
#}
{% macro _labelled(rows, settings) %}
    {%- if not settings.label -%}{{ return(rows) }}{%- endif -%}
    {{ return("select *, if(_stage in ('insert', 'update'), cast(" ~ settings.label.by ~ ' as string), null) as _reverse_etl_label from (' ~ rows ~ ')') }}
{% endmacro %}


{# The labels of the changed rows, ascending: [{label, inserts, updates, opens: when at the latest, times: of its last row and of the clock; in microseconds}] #}
{% macro _stage_labels(stage, settings) %}
    {%- set at = 'cast(' ~ settings.label.at ~ ' as timestamp)' if settings.label.grace else 'timestamp_micros(0)' -%}
    {%- set rows = run_query(
        "select _reverse_etl_label, count_if(_stage = 'insert'), count_if(_stage = 'update'), unix_micros(min(" ~ at ~ ') + interval '
        ~ reverse_etl._string(settings.label.grace or '0 seconds') ~ '), unix_micros(max(' ~ at ~ ')), unix_micros(current_timestamp()) from ' ~ stage
        ~ " where _stage in ('insert', 'update') group by 1 order by 1"
    ).rows -%}
    {%- set labels = [] -%}
    {%- for row in rows -%}
        {%- do labels.append({'label': row[0] if row[0] is none else row[0] | string, 'inserts': row[1] | int, 'updates': row[2] | int, 'opens': row[3], 'times': [row[4], row[5]]}) -%}
    {%- endfor -%}
    {{ return(labels) }}
{% endmacro %}


{# Has the label before `rest`, the labels that have not been opened, closed? The clock or a row lies a grace behind the first row of these; `known_to`: or one that is captured later. #}
{% macro _has_closed(labels, rest, known_to) %}
    {%- set opens = rest | map(attribute='opens') | reject('none') | list -%}
    {%- set times = (labels | sum(attribute='times', start=[]) + [known_to]) | reject('none') | list -%}
    {{ return(not opens or times | max >= opens | min) }}
{% endmacro %}


{% macro _refuse_labels(stage, settings, found, expected, next_step) %}
    {%- do adapter.drop_relation(stage) -%}
    {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ': ' ~ reverse_etl._nothing_captured(settings) ~ '. label: found ' ~ found ~ '; expected ' ~ expected ~ '. Next: ' ~ next_step) }}
{% endmacro %}


{% macro _strings(values) -%}
    {% for value in values %}{{ reverse_etl._string(value) }}{{ ', ' if not loop.last }}{% endfor %}
{%- endmacro %}
