{#
  Let the next capture correct a label that is closed: its late rows become one more snapshot of that label.
    dbt run-operation reopen --args '{model: contacts_changelog, label: "2026-11-19"}'
#}
{% macro reopen(model, label) %}
    {%- set changelog = reverse_etl._opened_changelog('reopen', model) -%}
    {%- set open_label = changelog.head.open_label -%}
    {%- if not open_label or label | string >= open_label -%}
        {%- do reverse_etl._operation_refuse('reopen', model, "label '" ~ label ~ "'", 'one before the open label, ' ~ (open_label or 'of which there is none'), 'correct --args') -%}
    {%- elif changelog.head.reopened == label | string -%}
        {%- do reverse_etl._operation_done('reopen', changelog, 'nothing to do: ' ~ label ~ ' is reopened already') -%}
    {%- else -%}
        {%- do reverse_etl._commit_unchanged(changelog, {'kind': 'reopen', 'reopened': label | string}) -%}
        {%- do reverse_etl._operation_done('reopen', changelog, 'the next capture may correct ' ~ label) -%}
    {%- endif -%}
{% endmacro %}
