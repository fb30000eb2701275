{#
  How far the newest run of a changelog came: each step, done or open, and where that stands. It reads what the runs leave, and keeps nothing.
    dbt run-operation steps --args '{model: orders_wide}'
#}
{% macro steps(model) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set changelog = reverse_etl._opened_changelog('steps', model) -%}
    {%- set captured = reverse_etl._captured_at(changelog) -%}
    {%- set run = reverse_etl._open_run(changelog.target, captured) -%}
    {%- if run -%}
        {%- do reverse_etl._operation_done('steps', changelog, 'the run of ' ~ run.began ~ ' UTC has not committed; it is under way, or was killed: then the next one starts over from snapshot ' ~ changelog.head.snapshot_id) -%}
    {%- else -%}
        {%- do reverse_etl._operation_done('steps', changelog, 'snapshot ' ~ changelog.head.snapshot_id ~ ' was captured at ' ~ captured ~ ' UTC') -%}
    {%- endif -%}
    {%- for step in (reverse_etl._open_steps(run, changelog) if run else reverse_etl._committed_steps(changelog.head)) + reverse_etl._publish_step(changelog, run) -%}
        {%- do log(('  %-20s%-6s%s' | format(step.name, 'done' if step.done else 'open', step.where)).rstrip(), info=true) -%}
    {%- endfor -%}
{% endmacro %}


{# When the head was captured, in UTC as the names of the tables tell the time. #}
{% macro _captured_at(changelog) %}
    {{ return(run_query(
        "select date_format(to_utc_timestamp(_captured_at, current_timezone()), 'yyyy-MM-dd HH:mm:ss') from " ~ changelog.target
        ~ " where _change = 'snapshot' and _snapshot_id = " ~ changelog.head.snapshot_id
    ).rows[0][0]) }}
{% endmacro %}


{# The newest run that began after the head was captured and left tables: {began, stored: {purpose: [name]}}; what began earlier is made good. #}
{% macro _open_run(target, captured) %}
    {%- set tables = reverse_etl._temporary_relations(target) -%}
    {%- set newest = tables | map(attribute='began') | sort | last if tables else '' -%}
    {%- set began = newest[:4] ~ '-' ~ newest[4:6] ~ '-' ~ newest[6:8] ~ ' ' ~ newest[8:10] ~ ':' ~ newest[10:12] ~ ':' ~ newest[12:] -%}
    {%- if not tables or began <= captured -%}{{ return(none) }}{%- endif -%}
    {%- set stored = {} -%}
    {%- for table in tables if table.began == newest -%}{%- do stored.setdefault(table.purpose, []).append(table.name) -%}{%- endfor -%}
    {{ return({'began': began, 'stored': stored}) }}
{% endmacro %}


{# A table stands when its step is done, so whatever comes before it is, too. #}
{% macro _open_steps(run, changelog) %}
    {%- set steps, reached = [], [] -%}
    {%- for name, purposes in {
        'recompute and diff': ['__uncommitted_'], 'affected keys': ['__candidates_', '__groups_'],
        'inputs pinned': ['__changes_', '__kafka_', '__files_', '__landing_', '__events_', '__model_'],
    }.items() -%}
        {%- set tables = [] -%}
        {%- for purpose in purposes -%}{%- do tables.extend(run.stored.get(purpose, [])) -%}{%- endfor -%}
        {%- if tables -%}{%- do reached.append(name) -%}{%- endif -%}
        {%- do steps.insert(0, {'name': name, 'done': reached | length > 0, 'where': tables | sort | join(', ')}) -%}
    {%- endfor -%}
    {{ return(steps + [{'name': 'commit', 'done': false, 'where': 'snapshot ' ~ changelog.head.snapshot_id ~ ' is the newest'}]) }}
{% endmacro %}


{% macro _committed_steps(head) %}
    {%- set positions = [] -%}
    {%- for name, position in head.positions.items() if not name.startswith('reverse_etl/') -%}{%- do positions.append(name | replace('affected_keys/', '') ~ ' ' ~ position) -%}{%- endfor -%}
    {{ return([
        {'name': 'inputs pinned', 'done': true, 'where': positions | sort | join(', ')},
        {'name': 'affected keys', 'done': true, 'where': ''},
        {'name': 'recompute and diff', 'done': true, 'where': '+' ~ head.inserts ~ ' ~' ~ head.updates ~ ' -' ~ head.deletes},
        {'name': 'commit', 'done': true, 'where': 'snapshot ' ~ head.snapshot_id},
    ]) }}
{% endmacro %}


{# Of a changelog that names a view. #}
{% macro _publish_step(changelog, run) %}
    {%- set view = reverse_etl._own_block(changelog.node.config).get('publish') -%}
    {%- if not view -%}{{ return([]) }}{%- endif -%}
    {%- set published = reverse_etl._published(changelog.target) -%}
    {%- set shown = published.snapshot_id if published and published.view in [none, view] else none -%}
    {%- set done = not run and shown == reverse_etl._changed(changelog.head) -%}
    {{ return([{'name': 'publish', 'done': done, 'where': view ~ (' shows snapshot ' ~ shown if shown else ' shows nothing yet')}]) }}
{% endmacro %}
