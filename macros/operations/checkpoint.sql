{#
  Write a full image of the head now: what is read later begins there, and prune can remove what lies before it.
    dbt run-operation checkpoint --args '{model: contacts_changelog}'
#}
{% macro checkpoint(model) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set changelog = reverse_etl._opened_changelog('checkpoint', model, true) -%}
    {%- if changelog is none -%}{{ return('') }}{%- endif -%}
    {%- set head = changelog.head -%}
    {%- if head.since_base == 0 -%}
        {%- do reverse_etl._operation_done('checkpoint', changelog, 'nothing to do: snapshot ' ~ head.base ~ ' holds a full image, and nothing changed since') -%}
    {%- else -%}
        {%- set header = reverse_etl._commit_unchanged(changelog, {'kind': 'checkpoint'}, image='checkpoint') -%}
        {%- do reverse_etl._operation_done('checkpoint', changelog, 'snapshot ' ~ header.snapshot_id ~ ' holds a full image, ' ~ header.live_rows ~ ' rows') -%}
    {%- endif -%}
{% endmacro %}
