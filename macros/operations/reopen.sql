{#
  Let the next capture correct labels that are closed: their late rows become one more snapshot of each. They add to those that are reopened already.
    dbt run-operation reopen --args '{model: contacts_changelog, label: "2026-11-19"}'
    dbt run-operation reopen --args '{model: contacts_changelog, label: ["2026-11-12", "2026-11-19"]}'
    dbt run-operation reopen --args '{model: contacts_changelog, label: {from: "2026-11-12", to: "2026-11-19"}}'
#}
{% macro reopen(model, label) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set changelog = reverse_etl._opened_changelog('reopen', model) -%}
    {%- set open_label = changelog.head.open_label or '' -%}
    {%- set reopened = reverse_etl._reopened(changelog.head) -%}
    {%- set closed, not_closed = [], [] -%}
    {%- for range in reverse_etl._label_ranges(model, label, open_label) -%}{%- do (closed if range[0] < open_label else not_closed).append(range) -%}{%- endfor -%}
    {%- set known = run_query("select distinct _header.label from " ~ changelog.target ~ " where _change in ('snapshot', 'pruned')").columns[0].values() | reject('none') | list -%}
    {%- for first, last in not_closed if not known | select('ge', first) | select('le', last) | list -%}
        {%- do reverse_etl._operation_refuse(
            'reopen', model, 'label ' ~ reverse_etl._range_text([[first, last]]), 'one before the open label, ' ~ (open_label or 'of which there is none'), 'correct --args'
        ) -%}
    {%- endfor -%}
    {%- set added = closed | reject('in', reopened) | list -%}
    {%- if added -%}
        {%- do reverse_etl._commit_unchanged(changelog, {'kind': 'reopen', 'reopened': tojson(reopened + added)}) -%}
        {%- do reverse_etl._operation_done('reopen', changelog, 'the next capture may correct ' ~ reverse_etl._range_text(reopened + added)) -%}
    {%- else -%}
        {%- do reverse_etl._operation_done(
            'reopen', changelog, 'nothing to do: ' ~ (reverse_etl._range_text(closed) ~ ' is reopened already' if closed else reverse_etl._range_text(not_closed) ~ ' is not closed: the open label is ' ~ open_label)
        ) -%}
    {%- endif -%}
{% endmacro %}


{# A label, a list of labels, or {from, to}, both included: [[first, last], ...] #}
{% macro _label_ranges(model, label, open_label) %}
    {%- set ranges = [] -%}
    {%- if label is mapping -%}
        {%- if not label or label.keys() | reject('in', ['from', 'to']) | list -%}
            {%- do reverse_etl._operation_refuse('reopen', model, 'label with ' ~ (label | join(', ') or 'nothing'), 'from, to, or both', 'correct --args') -%}
        {%- endif -%}
        {%- do ranges.append([label.get('from', '') | string, label.get('to', open_label) | string]) -%}
    {%- else -%}
        {%- for one in ([label] if label is string or label is not iterable else label) -%}{%- do ranges.append([one | string, one | string]) -%}{%- endfor -%}
    {%- endif -%}
    {%- for first, last in ranges if label is mapping and label | length == 2 and first > last -%}
        {%- do reverse_etl._operation_refuse('reopen', model, "label from '" ~ first ~ "' to '" ~ last ~ "'", 'the older one first, as labels sort as texts', 'correct --args') -%}
    {%- endfor -%}
    {{ return(ranges) }}
{% endmacro %}


{% macro _range_text(ranges) -%}
    {% for first, last in ranges %}'{{ first }}'{{ " to '" ~ last ~ "'" if first != last }}{{ ', ' if not loop.last }}{% endfor %}
{%- endmacro %}
