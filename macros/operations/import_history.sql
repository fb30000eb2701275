{#
  Fill a new changelog with history: one snapshot for each moment at which a row changed, captured at that time, all in one commit.
    dbt run-operation import_history --args '{model: contacts_changelog, relation: analytics.contacts_snapshot}'                    a dbt snapshot
    dbt run-operation import_history --args '{model: contacts_changelog, relation: analytics.contacts_daily, date_column: day}'     dated full copies
  The changelog has to be there and empty: dbt run --empty --select contacts_changelog.
    valid_from, valid_to, is_deleted  names of these columns in a dbt snapshot, where they are not dbt's own
    every      minute, hour, day, week or month: one snapshot for all moments within it, at the last of them
    label      SQL over `_captured_at`, the time of a snapshot, for its business label: never NULL, and as text no smaller than the one before it
    leave_out  columns of the relation that the model has not
#}
{% macro import_history(
    model, relation, date_column=none, valid_from='dbt_valid_from', valid_to='dbt_valid_to', is_deleted='dbt_is_deleted', every=none, label=none, leave_out=[]
) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set changelog = reverse_etl._empty_changelog(model) -%}
    {%- set history = reverse_etl._history_to_import(changelog, relation, date_column, valid_from, valid_to, is_deleted, every, leave_out) -%}
    {%- do history.update({'label': 'cast(' ~ label ~ ' as string)' if label else none}) -%}
    {%- set moments = reverse_etl._temporary_relation(changelog.target, '__model_', changelog.uuid) -%}
    {%- set stage = reverse_etl._stage_relation(changelog.target, changelog.uuid) -%}
    {%- call statement('moments') -%}
        create table {{ moments }} using {{ reverse_etl._private_format() }} as {{ reverse_etl._import_moments(history) }}
    {%- endcall -%}
    {%- call statement('stage') -%}
        create table {{ stage }} using {{ reverse_etl._private_format() }} as {{ reverse_etl._import_changes(changelog, history, moments) }}
    {%- endcall -%}
    {%- set found = reverse_etl._import_counts(moments, stage, history.label) -%}
    {%- set problem = reverse_etl._import_problem(found, history) -%}
    {%- if not problem -%}
        {%- call statement('commit') -%}{{ reverse_etl._import_commit(changelog, moments, stage, found, history.label) }}{%- endcall -%}
    {%- endif -%}
    {%- do adapter.drop_relation(moments) -%}
    {%- do adapter.drop_relation(stage) -%}
    {%- if problem -%}
        {%- do reverse_etl._operation_refuse('import_history', model, problem.found, problem.expected, problem.next) -%}
    {%- endif -%}
    {%- set written = reverse_etl._header(changelog.target, 1) -%}
    {%- if written.capture_uuid != changelog.uuid -%}
        {%- do reverse_etl._operation_refuse('import_history', model, 'a snapshot that another run captured meanwhile', 'a changelog without any', reverse_etl._command('reset', 'model: ' ~ model)) -%}
    {%- endif -%}
    {%- do log('import_history ' ~ model ~ ': ' ~ found.snapshots ~ ' snapshots, ' ~ found.changes ~ ' changes, ' ~ found.live_rows ~ ' rows at the last one.', info=true) -%}
{% endmacro %}


{# Returns {name, uuid: of this import, target, key, columns: [{name, type}]}. `dbt run --empty` made the table as the model's config says. #}
{% macro _empty_changelog(model) %}
    {%- set node = reverse_etl._changelog_node(model) -%}
    {%- set target = adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) -%}
    {%- if target is none -%}
        {%- do reverse_etl._operation_refuse('import_history', model, 'no table', 'an empty changelog', 'dbt run --empty --select ' ~ model) -%}
    {%- endif -%}
    {%- set own = reverse_etl._own_columns() | map(attribute='name') | list -%}
    {%- set present = reverse_etl._columns_of(target) -%}
    {%- if present[:own | length] | map(attribute='name') | list != own -%}
        {%- do reverse_etl._operation_refuse('import_history', model, 'a table that is no changelog', 'an empty changelog', reverse_etl._command('adopt', 'model: ' ~ model)) -%}
    {%- elif reverse_etl._head(target) is not none -%}
        {%- do reverse_etl._operation_refuse('import_history', model, 'a changelog that has snapshots', 'one without any: history cannot be put before what was captured', reverse_etl._command('reset', 'model: ' ~ model)) -%}
    {%- endif -%}
    {%- do reverse_etl._add_header_fields(target, present) -%}
    {{ return({
        'name': model, 'uuid': local_md5(invocation_id ~ '.import_history.' ~ node.unique_id), 'target': target, 'columns': present[own | length:],
        'key': [node.config.unique_key] if node.config.unique_key is string else node.config.unique_key,
    }) }}
{% endmacro %}


{# The relation and its columns, each as an expression. Returns {relation, moments, expressions, valid_from, valid_to, is_deleted, every, copies} #}
{% macro _history_to_import(changelog, relation, date_column, valid_from, valid_to, is_deleted, every, leave_out) %}
    {%- set leave_out = [leave_out] if leave_out is string else leave_out -%}
    {%- set parts = [] -%}
    {%- for part in modules.re.findall('`[^`]+`|[^.`]+', relation | string) -%}{%- do parts.append(part | replace('`', '')) -%}{%- endfor -%}
    {#- Spark's adapter drops the catalog, and would find another table of that schema and name. -#}
    {%- if parts | length > 2 and not changelog.target.include_policy.database and parts[-3] != run_query('select current_catalog()').rows[0][0] -%}
        {%- do reverse_etl._operation_refuse('import_history', changelog.name, "relation: '" ~ relation ~ "', in another catalog", 'a table or a view, as schema.name', 'make a view over it, and name that') -%}
    {%- endif -%}
    {%- set found = adapter.get_relation(database=parts[-3] if parts | length > 2 else changelog.target.database, schema=parts[-2] if parts | length > 1 else changelog.target.schema, identifier=parts[-1]) -%}
    {%- if found is none -%}
        {%- do reverse_etl._operation_refuse('import_history', changelog.name, "relation: '" ~ relation ~ "', which is not there", 'a table or a view, as schema.name', 'correct --args') -%}
    {%- endif -%}
    {%- set types = {} -%}
    {%- for column in reverse_etl._columns_of(found) -%}{%- do types.update({column.name | lower: column.type}) -%}{%- endfor -%}
    {%- set times = [date_column] if date_column else [valid_from, valid_to] -%}
    {%- set problems, expressions = reverse_etl._import_column_problems(changelog, types, times, is_deleted, every), [] -%}
    {%- set names = changelog.columns | map(attribute='name') | map('lower') | list -%}
    {%- for name in types if name not in names and name not in (times + leave_out + ([] if date_column else [is_deleted, 'dbt_scd_id', 'dbt_updated_at'])) | map('lower') -%}
        {%- do problems.append('column ' ~ name ~ ', which the model has not; expected it to be selected by the model, or left out on purpose: leave_out: [' ~ name ~ ']' ~ ('' if date_column or is_deleted | lower in types else '. If it marks deletions: is_deleted: ' ~ name)) -%}
    {%- endfor -%}
    {%- if problems -%}
        {{ exceptions.raise_compiler_error('import_history ' ~ changelog.name ~ ': nothing was imported. In ' ~ found ~ ' found:\n  ' ~ problems | join('\n  ')) }}
    {%- endif -%}
    {%- for column in changelog.columns -%}
        {%- do expressions.append((reverse_etl._quote(column.name) if column.name | lower in types else 'cast(null as ' ~ column.type ~ ')') ~ ' as ' ~ reverse_etl._quote(column.name)) -%}
    {%- endfor -%}
    {{ return({
        'relation': found, 'copies': date_column is not none, 'every': every, 'expressions': expressions,
        'from': 'cast(' ~ reverse_etl._quote(times[0]) ~ ' as timestamp)',
        'until': 'cast(null as timestamp)' if date_column else 'if(' ~ reverse_etl._quote(valid_to) ~ ' > current_timestamp(), null, cast(' ~ reverse_etl._quote(valid_to) ~ ' as timestamp))',
        'is_marked': reverse_etl._quote(is_deleted) ~ " is null or lower(" ~ reverse_etl._quote(is_deleted) ~ ") in ('true', 'false')" if is_deleted | lower in types and not date_column else 'true',
        'is_version': "coalesce(lower(" ~ reverse_etl._quote(is_deleted) ~ "), 'false') <> 'true'" if is_deleted | lower in types and not date_column else 'true',
    }) }}
{% endmacro %}


{% macro _import_column_problems(changelog, types, times, is_deleted, every) %}
    {%- set problems = [] -%}
    {%- if every is not none and every not in ['minute', 'hour', 'day', 'week', 'month'] -%}
        {%- do problems.append("every: '" ~ every ~ "'; expected minute, hour, day, week or month; correct --args") -%}
    {%- endif -%}
    {%- for name in times if name | lower not in types -%}
        {%- do problems.append('no column ' ~ name ~ '; expected the times of a dbt snapshot (valid_from, valid_to) or of dated copies (date_column); name them in --args') -%}
    {%- endfor -%}
    {#- Only a snapshot with `hard_deletes: new_record` has it. -#}
    {%- if is_deleted != 'dbt_is_deleted' and is_deleted | lower not in types -%}
        {%- do problems.append('no column ' ~ is_deleted ~ '; expected the one that marks deletions; correct is_deleted in --args') -%}
    {%- elif times | length > 1 and not types.get(is_deleted | lower, 'boolean').startswith(('boolean', 'string', 'varchar', 'char')) -%}
        {%- do problems.append('column ' ~ is_deleted ~ ' of type ' ~ types[is_deleted | lower] ~ "; expected boolean, or the texts 'true' and 'false': whatever else it holds marks no deletion; cast it in a view over the relation") -%}
    {%- endif -%}
    {%- for column in changelog.columns -%}
        {%- set type = types.get(column.name | lower) -%}
        {%- if type is none and column.name in changelog.key -%}
            {%- do problems.append('no column ' ~ column.name ~ ', which is of the key; expected every key column; select it in a view over the relation') -%}
        {%- elif type is not none and type != column.type -%}
            {%- do problems.append('column ' ~ column.name ~ ' of type ' ~ type ~ '; expected ' ~ column.type ~ ', as in the model; cast it in a view over the relation') -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(problems) }}
{% endmacro %}


{# Each moment with the id and the time of its snapshot. #}
{% macro _import_moments(history) -%}
    select _reverse_etl_moment, dense_rank() over (order by _period) as _snapshot_id, max(_reverse_etl_moment) over (partition by _period) as _captured_at
    from (
        select _reverse_etl_moment, {{ "date_trunc('" ~ history.every ~ "', _reverse_etl_moment)" if history.every else '_reverse_etl_moment' }} as _period
        from (
            select {{ history.from }} as _reverse_etl_moment from {{ history.relation }}
            {%- if not history.copies %}
            union select {{ history.until }} from {{ history.relation }}
            {%- else %}
            group by 1
            {%- endif %}
        )
        where _reverse_etl_moment is not null
    )
{%- endmacro %}


{#
  The changes of every snapshot, from the intervals [_from, _until) in which rows held: two that meet are an update, where their hashes differ.
  The rows that still hold stand here once more, as the checkpoint of the last snapshot. What no changelog can hold stands here as a problem.
#}
{% macro _import_changes(changelog, history, moments) -%}
    {%- set by_key = 'partition by ' ~ reverse_etl._columns(changelog.key) ~ ' order by _reverse_etl_from' -%}
    {%- set names = reverse_etl._columns(changelog.columns | map(attribute='name')) -%}
    with held as (
        select {{ names }}, {{ reverse_etl._model_hash(changelog.columns) }} as _row_hash, begins._snapshot_id as _reverse_etl_from,
            {{ 'if(begins._snapshot_id = (select max(_snapshot_id) from ' ~ moments ~ '), null, begins._snapshot_id + 1)' if history.copies else 'ends._snapshot_id' }} as _reverse_etl_until,
            _reverse_etl_is_marked
        from (select {{ history.expressions | join(', ') }}, {{ history.from }} as _reverse_etl_valid_from, {{ history.until }} as _reverse_etl_valid_to, {{ history.is_marked }} as _reverse_etl_is_marked from {{ history.relation }} where {{ history.is_version }}) as source_rows
        left join {{ moments }} begins on begins._reverse_etl_moment = _reverse_etl_valid_from
        left join {{ moments }} ends on ends._reverse_etl_moment = _reverse_etl_valid_to
        {%- if history.copies and history.every %}
        where _reverse_etl_valid_from is null or _reverse_etl_valid_from = begins._captured_at
        {%- endif %}
    ),
    neighbours as (
        select *, lag(_reverse_etl_from) over (in_order) as _reverse_etl_before_from, lag(_reverse_etl_until) over (in_order) as _reverse_etl_before_until, lag(_row_hash) over (in_order) as _reverse_etl_before_hash,
            lead(_reverse_etl_from) over (in_order) as _reverse_etl_after_from, lead(_row_hash) over (in_order) as _reverse_etl_after_hash
        from held
        where _reverse_etl_from is null or _reverse_etl_until is null or _reverse_etl_until <> _reverse_etl_from
        window in_order as ({{ by_key }})
    )
    select _reverse_etl_change._change, _reverse_etl_change._snapshot_id, _row_hash, {{ names }}
    from neighbours
    lateral view explode(array(
        case
            when not _reverse_etl_is_marked then named_struct('_change', 'no_mark', '_snapshot_id', 0)
            when _reverse_etl_from is null then named_struct('_change', 'no_time', '_snapshot_id', 0)
            when {{ reverse_etl._any_null(changelog.key) }} then named_struct('_change', 'null_key', '_snapshot_id', 0)
            when _reverse_etl_until < _reverse_etl_from then named_struct('_change', 'backwards', '_snapshot_id', 0)
            when _reverse_etl_before_from is not null and (_reverse_etl_before_until is null or _reverse_etl_before_until > _reverse_etl_from) then named_struct('_change', 'overlap', '_snapshot_id', 0)
            when _reverse_etl_before_until = _reverse_etl_from and _reverse_etl_before_hash = _row_hash then null
            else named_struct('_change', if(_reverse_etl_before_until = _reverse_etl_from, 'update_postimage', 'insert'), '_snapshot_id', _reverse_etl_from)
        end,
        case
            when _reverse_etl_until is null then named_struct('_change', 'checkpoint', '_snapshot_id', (select max(_snapshot_id) from {{ moments }}))
            when _reverse_etl_after_from = _reverse_etl_until and _reverse_etl_after_hash = _row_hash then null
            else named_struct('_change', if(_reverse_etl_after_from = _reverse_etl_until, 'update_preimage', 'delete'), '_snapshot_id', _reverse_etl_until)
        end
    )) exploded as _reverse_etl_change
    where _reverse_etl_change is not null
{%- endmacro %}


{# Returns {snapshots, changes, live_rows, future: moments that are yet to come, and the problems by their names} #}
{% macro _import_counts(moments, stage, label) %}
    {%- set found = {'insert': 0, 'update_postimage': 0, 'delete': 0, 'checkpoint': 0, 'no_mark': 0, 'no_time': 0, 'null_key': 0, 'backwards': 0, 'overlap': 0, 'base': 0} -%}
    {%- for row in run_query('select _change, count(*), count_if(_snapshot_id > 1) from ' ~ stage ~ ' group by 1').rows -%}
        {%- do found.update({row[0]: row[1] | int, row[0] ~ '_later': row[2] | int}) -%}
    {%- endfor -%}
    {%- set row = run_query(
        'select coalesce(max(_snapshot_id), 0), count_if(_captured_at > current_timestamp()), count_if(_label is null), count_if(_label < _label_before) from (select *, lag(_label) over (order by _snapshot_id) as _label_before from (select distinct _snapshot_id, _captured_at, '
        ~ (label or "''") ~ ' as _label from ' ~ moments ~ '))'
    ).rows[0] -%}
    {%- set since = found.get('insert_later', 0) + found.update_postimage + found.delete -%}
    {%- do found.update({
        'snapshots': row[0] | int, 'future': row[1] | int, 'no_label': row[2] | int, 'labels_back': row[3] | int, 'changes': found.insert + found.update_postimage + found.delete, 'live_rows': found.checkpoint,
        'checkpoint': row[0] | int > 1 and since * 4 > found.checkpoint,
    }) -%}
    {{ return(found) }}
{% endmacro %}


{% macro _import_problem(found, history) %}
    {%- set wrong = [
        [found.no_mark, " rows whose is_deleted is neither 'true' nor 'false'", 'one of the two in each row'],
        [found.no_time, ' rows without a time', 'a time in each row'],
        [found.null_key, ' rows with a NULL key', 'a key in each row'],
        [found.backwards, ' rows that end before they begin', 'half-open intervals'],
        [found.overlap, ' rows that share their key with another one at the same time', 'each key at most once at any time'],
        [found.future, ' moments that are yet to come', 'history'],
    ] -%}
    {%- for count, what, expected in wrong if count -%}
        {{ return({'found': count ~ what ~ ' in ' ~ history.relation, 'expected': expected, 'next': 'correct them in a view over the relation, and import that'}) }}
    {%- endfor -%}
    {%- for count, what, expected in [
        [found.no_label, ' snapshots without a label', 'a label for each'],
        [found.labels_back, ' snapshots whose label is smaller than the one before', 'labels that grow with the time'],
    ] if count -%}
        {{ return({'found': count ~ what, 'expected': expected, 'next': 'correct label in --args: SQL over _captured_at'}) }}
    {%- endfor -%}
    {%- if not found.changes -%}
        {{ return({'found': 'no rows in ' ~ history.relation, 'expected': 'history', 'next': 'dbt run captures the first snapshot'}) }}
    {%- elif found.snapshots > 10000 -%}
        {{ return({'found': found.snapshots ~ ' moments in ' ~ history.relation, 'expected': 'at most 10000 snapshots', 'next': "group them, with every: 'day' in --args"}) }}
    {%- endif -%}
{% endmacro %}


{# txnVersion 1: a run that captures snapshot 1 meanwhile, and this import, exclude each other. A range of snapshots is to lie in few files. #}
{% macro _import_commit(changelog, moments, stage, found, label) -%}
    {%- set names = reverse_etl._columns(changelog.columns | map(attribute='name')) -%}
    insert into {{ changelog.target }} with (txnAppId = 'changelog', txnVersion = '1') by name
    select /*+ repartition_by_range(_snapshot_id) */ * from (
        select 'snapshot' as _change, _snapshot_id, _captured_at, cast(null as bigint) as _row_hash, _header, {{ reverse_etl._null_columns(changelog.columns) }}
        from ({{ reverse_etl._import_headers(changelog, moments, stage, found, label) }})
        union all
        select s._change, s._snapshot_id, m._captured_at, s._row_hash, {{ reverse_etl._no_header() }}, {{ names }}
        from {{ stage }} s
        join (select distinct _snapshot_id, _captured_at from {{ moments }}) m on m._snapshot_id = s._snapshot_id
        {%- if not found.checkpoint %}
        where s._change <> 'checkpoint'
        {%- endif %}
    )
{%- endmacro %}


{# The headers: what is the same in all, and what is counted snapshot by snapshot. Only the last may stand on a full image of its own. #}
{% macro _import_headers(changelog, moments, stage, found, label) -%}
    {%- set same = reverse_etl._next_header(
        none, {'inserts': 0, 'updates': 0, 'deletes': 0}, {'key': changelog.key, 'model': changelog.columns}, changelog.uuid, {'kind': 'import'}
    ) -%}
    {%- set is_base = '_snapshot_id = ' ~ (found.snapshots if found.checkpoint else 0) -%}
    {%- set counted = {
        'inserts': 'inserts', 'updates': 'updates', 'deletes': 'deletes', 'live_rows': 'sum(inserts - deletes) over so_far',
        'base': 'if(' ~ is_base ~ ', _snapshot_id, 1)',
        'since_base': 'if(' ~ is_base ~ ', 0, sum(if(_snapshot_id = 1, 0, inserts + updates + deletes)) over so_far)',
        'changed': 'max(if(_snapshot_id = 1 or ' ~ is_base ~ ' or inserts + updates + deletes > 0, _snapshot_id, 1)) over so_far',
    } -%}
    {%- if label -%}{%- do counted.update({'label': label, 'open_label': label}) -%}{%- endif -%}
    select _snapshot_id, _captured_at, named_struct(
        {%- for name, type in reverse_etl._header_fields().items() %}
        '{{ name }}', {{ 'cast(' ~ counted[name] ~ ' as ' ~ type ~ ')' if name in counted else 'same.' ~ name }}{{ ',' if not loop.last }}
        {%- endfor %}
    ) as _header
    from (
        select m._snapshot_id, any_value(m._captured_at) as _captured_at,
            count_if(s._change = 'insert') as inserts, count_if(s._change = 'update_postimage') as updates, count_if(s._change = 'delete') as deletes
        from (select distinct _snapshot_id, _captured_at from {{ moments }}) m
        left join {{ stage }} s on s._snapshot_id = m._snapshot_id
        group by m._snapshot_id
    )
    cross join (select {{ reverse_etl._header_literal(same) }} as same)
    window so_far as (order by _snapshot_id)
{%- endmacro %}
