{#
  The keys of a wide table (see wide_table) that the changed rows of its tables lead to, as they were and as they are.
    recompute  full: everything is compared each time. affected: the model adds SQL of its own to the wide table, but each row still follows from the
               row of the wide table with the same key alone; without that word, added SQL makes everything compared
  Each table says what changed by its changelog or by Delta's change feed; where one cannot, everything is compared.
#}
{% macro capture_affected_keys(capture) %}
    {%- set plan = reverse_etl._checked_plan(reverse_etl._own_block(config).get('wide_table')) -%}
    {%- set since = capture.since or {} -%}
    {%- set positions, problems, read = {}, [], {} -%}
    {#- First how far every table has come, then what changed in it: what comes meanwhile is proposed the next time. -#}
    {%- for node in plan.group + plan.joined if node.table not in read -%}
        {%- set known = since.get('affected_keys/' ~ node.table, '') -%}
        {%- set told = plan.nodes.values() | selectattr('table', 'equalto', node.table) | map(attribute='changes') | select | first -%}
        {%- set found = reverse_etl._input_changes(node.table, told, plan.inputs[node.name], known) -%}
        {%- do read.update({node.table: found}) -%}
        {%- if found.position -%}{%- do positions.update({'affected_keys/' ~ node.table: found.position}) -%}{%- endif -%}
        {%- if found.problem -%}{%- do problems.append(found.problem) -%}{%- endif -%}
    {%- endfor -%}
    {%- do problems.extend(reverse_etl._not_incremental(plan, capture.options)) -%}
    {%- if not problems -%}{%- do problems.extend(reverse_etl._keys_by_cast(plan, reverse_etl._types_of_keys(plan))) -%}{%- endif -%}
    {%- if plan.key != capture.columns.key -%}
        {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ': unique_key: found ' ~ capture.columns.key | join(', ') ~ '; expected the key of the root of its wide table (' ~ plan.key | join(', ') ~ '); correct it') }}
    {%- endif -%}
    {%- set stored = reverse_etl._stored_changes(capture, plan, read, problems) if not problems else {} -%}
    {%- set changes = {} -%}
    {%- for node in plan.nodes.values() if node.table in stored -%}{%- do changes.update({node.name: stored[node.table]}) -%}{%- endfor -%}
    {%- set indexes = reverse_etl._fresh_indexes(plan, since, positions) if not problems else {} -%}
    {{ return({
        'problem': problems | join('; ') or none,
        'positions': positions,
        'candidates': reverse_etl._affected_keys(plan, plan.relations, changes, indexes, reverse_etl._nearby(plan, changes, indexes)) if not problems else none,
        'temporary': stored.values() | list,
    }) }}
{% endmacro %}


{#
  The columns of the changed rows that joins need, in a table for each input: {table: relation}. Small tables of their own, so that Spark knows how few they
  are, and because Spark may resolve a table once for a whole statement: no statement reads both a table and its change feed. What cannot be read is one of `problems`.
#}
{% macro _stored_changes(capture, plan, read, problems) %}
    {%- set stored = {} -%}
    {%- for table, found in read.items() if found.changes -%}
        {%- set columns = [] -%}
        {%- for node in plan.nodes.values() if node.table == table -%}
            {%- do columns.extend(node.pairs | map(attribute='child') | list + node.key_of.values() | list) -%}
        {%- endfor -%}
        {%- set relation = reverse_etl._temporary_relation(capture.relation, '__changes_', local_md5(invocation_id ~ model.unique_id ~ table)) -%}
        {%- set query = 'select distinct ' ~ reverse_etl._columns(columns | unique) ~ ' from ' ~ found.changes -%}
        {%- if reverse_etl._store_private(relation, query, may_fail=found.unreadable is not none) -%}{%- do stored.update({table: relation}) -%}
        {%- else -%}{%- do problems.append(found.unreadable) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(stored) }}
{% endmacro %}


{#
  What changed in one table after the position that the head knows:
  {position: how far it has come, problem: why its changes are not known, changes: all images of the changed rows, behind `from`, or none where nothing changed;
  unreadable: why, where these cannot be read, or none: they can}
#}
{% macro _input_changes(name, told, input, known) %}
    {%- set table = reverse_etl._relation_of(input).render() -%}
    {%- if input.config.materialized == 'changelog' -%}
        {%- set head = reverse_etl._head(table) -%}
        {%- if head is none -%}{{ return({'position': none, 'problem': name ~ ' has no snapshot yet', 'changes': none, 'unreadable': none}) }}{%- endif -%}
        {%- set read = known.split(':') -%}
        {%- set problem = reverse_etl._changelog_problem(name, table, read, head) -%}
        {%- set changes = reverse_etl._images_between(table, read[1] | int, head.snapshot_id) if not problem and head.snapshot_id > read[1] | int else none -%}
        {{ return({'position': reverse_etl._changelog_position(head), 'problem': problem, 'changes': changes, 'unreadable': none}) }}
    {%- elif told == 'cdf' -%}
        {{ return(reverse_etl._delta_feed(table, known, 'wide_table, the changes of ' ~ name)) }}
    {%- endif -%}
    {{ return({'position': none, 'problem': 'what changed in ' ~ name ~ ' is not known: it is no changelog and has no changes: cdf', 'changes': none, 'unreadable': none}) }}
{% endmacro %}


{# How far a changelog has come: what was put back from a copy has the same ids, made by other captures. #}
{% macro _changelog_position(head) %}{{ return([head.changelog_uuid, head.snapshot_id, head.capture_uuid] | join(':')) }}{% endmacro %}


{# Why the changelog does not tell what changed after the snapshot that was read (uuid, id, capture; of an earlier build without the capture); or none. #}
{% macro _changelog_problem(name, table, read, head) %}
    {%- if read | length < 2 -%}{{ return(name ~ ' was not read before') }}{%- endif -%}
    {%- if read[0] != head.changelog_uuid or head.snapshot_id < read[1] | int -%}{{ return(name ~ ' was made anew') }}{%- endif -%}
    {%- set replaced = name ~ ' was put back from a copy' -%}
    {%- if head.snapshot_id == read[1] | int -%}{{ return(replaced if head.capture_uuid != read[2] | default(head.capture_uuid) else none) }}{%- endif -%}
    {%- set headers = table ~ " where _change in ('snapshot', 'pruned') and _snapshot_id >= " ~ read[1] | int ~ ' and _snapshot_id <= ' ~ head.snapshot_id -%}
    {%- set kept, retyped, captured_by = run_query(
        "select count_if(_change = 'snapshot' and _snapshot_id > " ~ read[1] | int ~ '), (select count(*) from ('
        ~ 'select lower(name) from (select inline(_header.columns) from ' ~ headers ~ ') group by 1 having count(distinct type) > 1)), max(_header.capture_uuid) filter (where _snapshot_id = ' ~ read[1] | int ~ ') from ' ~ headers
    ).rows[0].values() -%}
    {%- if captured_by != read[2] | default(captured_by) -%}{{ return(replaced) }}{%- endif -%}
    {%- if kept | int != head.snapshot_id - read[1] | int -%}{{ return('snapshots of ' ~ name ~ ' after ' ~ read[1] ~ ' were pruned') }}{%- endif -%}
    {#- Values that are computed from a column may change with its type, and no row of it does. -#}
    {{ return('a column of ' ~ name ~ ' has another type' if retyped | int else none) }}
{% endmacro %}


{# The columns of the tables that join by the key of the wide table: {node: [{name, type}]} #}
{% macro _types_of_keys(plan) %}
    {%- set tables, types = {}, {} -%}
    {%- for side in reverse_etl._pairs_of_keys(plan) | sum(start=[]) if side.node not in types -%}
        {%- set table = reverse_etl._relation_of(plan.inputs[side.node]).render() -%}
        {%- if table not in tables -%}{%- do tables.update({table: reverse_etl._columns_of(table)}) -%}{%- endif -%}
        {%- do types.update({side.node: tables[table]}) -%}
    {%- endfor -%}
    {{ return(types) }}
{% endmacro %}


{# Why affected keys would not be enough, although all changes are known. #}
{% macro _not_incremental(plan, options) %}
    {%- if options.recompute == 'full' -%}{{ return(['recompute: full']) }}{%- endif -%}
    {%- set problems = reverse_etl._wide_outside(plan) -%}
    {%- set sql, wide = reverse_etl._without_comments(model.compiled_code), reverse_etl._without_comments(reverse_etl._wide_query(plan, plan.relations)) -%}
    {%- if options.recompute != 'affected' and sql != wide -%}
        {%- do problems.append('the model adds SQL to its wide table; if each row follows from the row with the same key alone, say capture.recompute: affected') -%}
    {#- The SQL of a generated leaf calls no wide_table. -#}
    {%- elif wide | trim not in sql and 'macro.reverse_etl.wide_table' in model.depends_on.macros -%}
        {%- do problems.append('the SQL of the model joins another tree than its meta.reverse_etl.wide_table') -%}
    {%- endif -%}
    {{ return(problems) }}
{% endmacro %}

{% macro _without_comments(sql) -%}
    {%- for line in sql.splitlines() if line.strip() and not line.strip().startswith('--') -%}{{ line.strip() ~ '\n' }}{%- endfor -%}
{%- endmacro %}
