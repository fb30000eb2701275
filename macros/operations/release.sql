{#
  End what was to last:
    dbt run-operation release --args '{model: contacts_changelog}'                            the freeze after a rollback: the next run captures again
    dbt run-operation release --args '{model: contacts_changelog, savepoint: before_import}'  a savepoint: prune may remove it
#}
{% macro release(model, savepoint=none) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set changelog = reverse_etl._opened_changelog('release', model) -%}
    {%- if savepoint is not none -%}
        {%- if savepoint in reverse_etl._savepoints(changelog.target) -%}
            {%- do reverse_etl._commit_unchanged(changelog, {'kind': 'release', 'savepoint': savepoint}) -%}
            {%- do reverse_etl._operation_done('release', changelog, "the savepoint '" ~ savepoint ~ "' is given up: prune may remove it") -%}
        {%- else -%}
            {%- do reverse_etl._operation_done(
                'release', changelog, "nothing to do: there is no savepoint '" ~ savepoint ~ "'; there are " ~ (reverse_etl._savepoints(changelog.target) | join(', ') or 'none')
            ) -%}
        {%- endif -%}
    {%- elif changelog.head.frozen -%}
        {%- do reverse_etl._commit_unchanged(changelog, {'kind': 'release', 'frozen': false}) -%}
        {%- do reverse_etl._operation_done('release', changelog, 'the next dbt run captures again') -%}
    {%- else -%}
        {%- do reverse_etl._operation_done('release', changelog, 'nothing to do: it is not frozen') -%}
    {%- endif -%}
{% endmacro %}


{# What a run says of a frozen model in place of a capture. The head is told, so that syncs push a rollback. #}
{% macro _frozen_result(head, name) %}
    {{ return({
        'message': 'frozen since a rollback, nothing captured, snapshot ' ~ head.snapshot_id ~ '; to capture again: ' ~ reverse_etl._command('release', 'model: ' ~ name),
        'code': reverse_etl._head_code(head),
        'changes': 0,
    }) }}
{% endmacro %}
