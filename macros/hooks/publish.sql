{#
  A stable name over the newest snapshot that passed its tests: a view that always shows one whole snapshot. In dbt_project.yml:
    on-run-end: ["{{ reverse_etl.publish(results) }}"]
  and in the changelog's meta.reverse_etl `publish: customer_360`, the name of the view. A model with tests is published by the invocation in which
  all of them passed (`dbt build`, or `dbt test` after `dbt run`); one without tests by each run that captured it.
  A reader that began before keeps the rows that it began with; prune keeps what the view shows.
#}
{% macro publish(results) %}
    {%- set statuses, heads, unit_tests = {}, {}, [] -%}
    {%- for result in results if execute -%}
        {%- do statuses.update({result.node.unique_id: result.status | string}) -%}
        {%- do heads.update({result.node.unique_id: result.adapter_response.get('code')}) -%}
        {%- if result.node.resource_type == 'unit_test' -%}{%- do unit_tests.append(result.node) -%}{%- endif -%}
    {%- endfor -%}
    {#- Tests of a part of the rows say nothing about a snapshot. -#}
    {%- for node in (graph.nodes.values() if statuses and not reverse_etl._is_partial() else []) if node.config.get('materialized') == 'changelog' and reverse_etl._own_block(node.config).get('publish') -%}
        {%- set tests = reverse_etl._tests_of(node.unique_id) -%}
        {%- if ([node.unique_id] + tests) | select('in', statuses) | list -%}
            {%- set reason, name = reverse_etl._not_publishable(node, tests, statuses, unit_tests), node.config.meta.reverse_etl.publish -%}
            {%- set changelog = reverse_etl._opened_changelog('publish', reverse_etl._named(node), true) if not reason else none -%}
            {#- A model that ran was refused before its capture; `dbt test` runs none. -#}
            {%- set taken_by = reverse_etl._taken_by_another(node, name) if changelog is not none else '' -%}
            {%- if taken_by -%}
                {%- set reason = "for '" ~ name ~ "' is the name of " ~ taken_by ~ '; expected a name of its own; next: take another one in meta.reverse_etl.publish' -%}
            {%- elif changelog is not none and reverse_etl._is_newer(changelog, heads.get(node.unique_id)) -%}
                {%- set reason = 'for another run captured a newer snapshot meanwhile, which comes with its own tests' -%}
            {%- endif -%}
            {%- if reason -%}
                {%- do log('publish ' ~ reverse_etl._named(node) ~ ': not published, ' ~ reason, info=true) -%}
            {%- elif changelog is not none -%}
                {%- do reverse_etl._publish(changelog, name) -%}
            {%- endif -%}
        {%- endif -%}
    {%- endfor -%}
{% endmacro %}


{#
  Whether the head is another one than that which this run captured or found, as its `code` says. Without a code the model did not run, as in `dbt test`: then
  its tests may have begun before the head was committed. Ages are compared: times of the history are in the zone of the session, or of this machine.
#}
{% macro _is_newer(changelog, code) %}
    {%- if code is not none -%}{{ return(code.split(' by ')[0] != reverse_etl._head_code(changelog.head).split(' by ')[0]) }}{%- endif -%}
    {%- set now = run_query('select current_timestamp()').rows[0][0] -%}
    {%- set age = modules.datetime.datetime.now(modules.pytz.utc) - run_started_at -%}
    {%- set of_head = 'snapshot ' ~ reverse_etl._changed(changelog.head) ~ ' of ' -%}
    {%- for commit in run_query('describe history ' ~ changelog.target ~ ' limit 100').rows if (commit['userMetadata'] or '').startswith(of_head) -%}
        {{ return(now - commit['timestamp'] <= age) }}
    {%- endfor -%}
    {{ return(false) }}
{% endmacro %}


{# The tests that depend on a model: {unique id} #}
{% macro _tests_of(model) %}
    {%- set tests = [] -%}
    {%- for node in graph.nodes.values() if node.resource_type == 'test' and model in node.depends_on.nodes -%}{%- do tests.append(node.unique_id) -%}{%- endfor -%}
    {{ return(tests) }}
{% endmacro %}


{# unit_tests: those that ran; `graph` has none. #}
{% macro _not_publishable(node, tests, statuses, unit_tests) %}
    {%- if statuses.get(node.unique_id, 'success') != 'success' -%}{{ return('for the model did not succeed') }}{%- endif -%}
    {%- set failed = [] -%}
    {%- for test in tests if statuses.get(test, 'pass') not in ['pass', 'warn'] -%}{%- do failed.append(graph.nodes[test].name ~ ' (' ~ statuses[test] ~ ')') -%}{%- endfor -%}
    {%- for test in unit_tests if node.unique_id in test.depends_on.nodes and statuses[test.unique_id] not in ['pass', 'warn'] -%}{%- do failed.append(test.name ~ ' (' ~ statuses[test.unique_id] ~ ')') -%}{%- endfor -%}
    {%- if failed -%}{{ return('for tests did not pass: ' ~ failed | join(', ')) }}{%- endif -%}
    {%- if node.unique_id not in statuses and reverse_etl._is_deferred(node) -%}{{ return('for its tests have read the changelog of another target') }}{%- endif -%}
    {%- set unasked = tests | reject('in', statuses) | list | length -%}
    {{ return('for ' ~ unasked ~ ' of its ' ~ tests | length ~ ' tests have not run; next: dbt test, or dbt build in place of dbt run' if unasked else '') }}
{% endmacro %}


{# Whether --defer put the changelog of another target in the place of one that did not run. #}
{% macro _is_deferred(node) %}
    {%- set is_other = node.defer_relation and node.defer_relation.relation_name != node.relation_name -%}
    {{ return(is_other and (invocation_args_dict.get('favor_state') or adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) is none)) }}
{% endmacro %}


{# The view first: a run that is killed in between leaves a property that keeps more than is needed, and the next one does both again. #}
{% macro _publish(changelog, name) %}
    {%- set snapshot_id, before = reverse_etl._changed(changelog.head), reverse_etl._published(changelog.target) -%}
    {%- set view = reverse_etl._published_view(changelog.node, name) -%}
    {%- set existing = adapter.get_relation(database=view.database, schema=view.schema, identifier=name) -%}
    {%- if existing is none or before is none or [before.snapshot_id, before.view] != [snapshot_id, name] -%}
        {%- do reverse_etl._show(view, changelog.columns, changelog.target, snapshot_id) -%}
        {%- do run_query('alter table ' ~ changelog.target ~ " set tblproperties ('dbt_reverse_etl.published' = '" ~ snapshot_id ~ "', 'dbt_reverse_etl.published_as' = " ~ reverse_etl._string(reverse_etl._dotted(name)) ~ ')') -%}
        {%- set left = '' if before is none or before.view in [none, name] else '; ' ~ before.view ~ ' follows no longer: drop it, for prune does not keep what it shows' -%}
        {%- do reverse_etl._operation_done('publish', changelog, name ~ ' shows snapshot ' ~ snapshot_id ~ ', ' ~ changelog.head.live_rows ~ ' rows' ~ left) -%}
    {%- endif -%}
{% endmacro %}


{% macro _published_view(node, name) %}{{ return(api.Relation.create(database=node.database, schema=node.schema, identifier=name, type='view')) }}{% endmacro %}


{% macro _show(view, columns, table, snapshot_id) %}
    {%- do run_query('create or replace view ' ~ view ~ ' as select * from ' ~ reverse_etl.as_of(table, snapshot=snapshot_id, key=columns.key, columns=columns.names)) -%}
{% endmacro %}


{# The property outlives the setting: without both the setting and the view, nobody reads what it names. #}
{% macro _is_still_published(node, published) %}
    {%- if not published.view or reverse_etl._own_block(node.config).get('publish') -%}{{ return(true) }}{%- endif -%}
    {%- set view = reverse_etl._published_view(node, published.view) -%}
    {%- set existing = adapter.get_relation(database=view.database, schema=view.schema, identifier=view.identifier) -%}
    {{ return(existing is not none and existing.type == 'view') }}
{% endmacro %}


{# What readers see: {snapshot_id, view: its name; none: an older version kept none, or one that Spark does not show}; none: it was never published #}
{% macro _published(target) %}
    {%- set known = reverse_etl._table_properties(target) -%}
    {%- set snapshot_id = known.get('dbt_reverse_etl.published') -%}
    {{ return(none if snapshot_id is none else {'snapshot_id': snapshot_id | int, 'view': reverse_etl._undotted(known.get('dbt_reverse_etl.published_as'))}) }}
{% endmacro %}
