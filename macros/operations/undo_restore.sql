{#
  Take back a RESTORE, TRUNCATE, REPLACE or CLONE of a changelog, which removed snapshots that were captured and maybe pushed: the table is again as it was before.
    dbt run-operation undo_restore --args '{model: contacts_changelog}'
  To go back to an earlier state on purpose: rollback.
#}
{% macro undo_restore(model) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set node = reverse_etl._changelog_node(model) -%}
    {%- set target = adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) -%}
    {%- if target is none -%}
        {%- do reverse_etl._operation_refuse('undo_restore', model, 'no table', 'a changelog that was captured', 'dbt run --select ' ~ model) -%}
    {%- endif -%}
    {%- set lost = reverse_etl._lost_snapshots(target) -%}
    {%- if lost is none -%}
        {%- do log('undo_restore ' ~ model ~ ': nothing to do: its history tells of no snapshot that it lost', info=true) -%}
    {%- else -%}
        {%- do run_query('restore table ' ~ target ~ ' to version as of ' ~ lost.version) -%}
        {%- do log('undo_restore ' ~ model ~ ': snapshots ' ~ (lost.kept + 1) ~ ' to ' ~ lost.newest ~ ' are back. Next: dbt run captures what has changed since, and pushes it', info=true) -%}
    {%- endif -%}
{% endmacro %}


{#
  The snapshots that the table had by its history, and has no more: {newest: the one that was captured last, kept: the newest that is left, by: the operation that
  removed them and its version, version: the one before it, which has them}; or none.
#}
{% macro _lost_snapshots(target) %}
    {%- set captured = {} -%}
    {%- set removed = {} -%}
    {%- for commit in run_query('describe history ' ~ target).rows -%}
        {%- set words = (commit['userMetadata'] or '').split(' ') -%}
        {%- set operation = commit['operation'] -%}
        {%- if words[0] == 'snapshot' and words | length > 1 -%}{%- do captured.setdefault(words[1] | int, commit['version'] | int) -%}{%- endif -%}
        {%- if operation in ('RESTORE', 'TRUNCATE', 'DELETE', 'CLONE') or 'REPLACE' in operation -%}{%- do removed.update({commit['version'] | int: operation}) -%}{%- endif -%}
    {%- endfor -%}
    {#- After the history: what another run commits between the two is not lost. -#}
    {%- set kept = run_query('select coalesce(max(_snapshot_id), 0) from ' ~ target).rows[0][0] | int -%}
    {%- set newest = captured | max if captured else 0 -%}
    {%- if newest <= kept -%}{{ return(none) }}{%- endif -%}
    {%- set first = removed | select('gt', captured[newest]) | min | default(captured[newest] + 1) -%}
    {{ return({'newest': newest, 'kept': kept, 'by': removed.get(first, 'a write') ~ ' (version ' ~ first ~ ' of the table)', 'version': first - 1}) }}
{% endmacro %}
