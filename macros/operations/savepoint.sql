{#
  Keep the head for good under a name: a snapshot with a full image of its own, which prune never removes.
    dbt run-operation savepoint --args '{model: contacts_changelog, name: before_import}'
#}
{% macro savepoint(model, name) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set changelog = reverse_etl._opened_changelog('savepoint', model) -%}
    {%- if name is not string or not name.strip() -%}
        {%- do reverse_etl._operation_refuse('savepoint', model, "the name '" ~ name ~ "'", 'a text', reverse_etl._command('savepoint', 'model: ' ~ model ~ ', name: before_import')) -%}
    {%- endif -%}
    {%- set known = reverse_etl._savepoints(changelog.target).get(name) -%}
    {%- if known is not none and reverse_etl._unchanged_since(changelog, known) -%}
        {%- do reverse_etl._operation_done('savepoint', changelog, "nothing to do: '" ~ name ~ "' is snapshot " ~ known ~ ', and nothing changed since') -%}
    {%- elif known is not none -%}
        {%- do reverse_etl._operation_refuse(
            'savepoint', model, "the name '" ~ name ~ "' at snapshot " ~ known ~ ', which is not the head', 'another name',
            'take one, or give it up first: ' ~ reverse_etl._command('release', 'model: ' ~ model ~ ', savepoint: ' ~ name)
        ) -%}
    {%- else -%}
        {%- set header = reverse_etl._commit_unchanged(changelog, {'kind': 'savepoint', 'savepoint': name}, image='savepoint') -%}
        {%- do reverse_etl._operation_done('savepoint', changelog, "'" ~ name ~ "' is snapshot " ~ header.snapshot_id ~ ', ' ~ header.live_rows ~ ' rows') -%}
    {%- endif -%}
{% endmacro %}


{# Whether every snapshot after this one is known and changed no row. #}
{% macro _unchanged_since(changelog, snapshot_id) %}
    {%- set row = run_query(
        "select count(*), coalesce(sum(_header.inserts + _header.updates + _header.deletes), 0) from " ~ changelog.target
        ~ " where _change = 'snapshot' and _snapshot_id > " ~ snapshot_id
    ).rows[0] -%}
    {{ return(row[0] | int == changelog.head.snapshot_id - snapshot_id and row[1] | int == 0) }}
{% endmacro %}
