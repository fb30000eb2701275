{# The table of a changelog: is it ours, what are its columns, how is it made. #}

{% macro _own_columns() %}
    {{ return([
        {'name': '_change', 'type': 'string', 'description': 'insert, update_preimage, update_postimage, delete, checkpoint, tombstone, snapshot for the header row, or ledger for a row that names the ledger of a sync'},
        {'name': '_snapshot_id', 'type': 'bigint', 'description': 'The snapshot that captured this change: 1, 2, 3 ...; only grows'},
        {'name': '_captured_at', 'type': 'timestamp', 'description': 'When that snapshot was captured'},
        {'name': '_row_hash', 'type': 'bigint', 'description': 'Hash of the columns of the model'},
        {'name': '_header', 'type': reverse_etl._header_type() | trim, 'description': 'Only in the header row of a snapshot: identity, counts, columns'},
    ]) }}
{% endmacro %}

{% macro _existing_changelog(target) %}
    {%- set existing = load_cached_relation(target) -%}
    {%- if existing is none -%}{{ return(none) }}{%- endif -%}
    {%- set missing = reverse_etl._missing_own_column(existing) -%}
    {%- if missing -%}
        {{ exceptions.raise_compiler_error(
            target ~ ' is a ' ~ existing.type ~ ' without the column ' ~ missing ~ ', so it is no changelog; nothing was written. Expected: no relation of this name, or a changelog. '
            ~ "Next: give the model another alias, or take the table over with: dbt run-operation adopt --args '{model: " ~ reverse_etl._named(model) ~ "}'"
        ) }}
    {%- endif -%}
    {{ return(existing) }}
{% endmacro %}

{# The first column of a changelog that a relation lacks; none: it is a changelog. #}
{% macro _missing_own_column(relation) %}
    {%- set names = reverse_etl._columns_of(relation) | map(attribute='name') | list if relation.type != 'view' else [] -%}
    {{ return(reverse_etl._own_columns() | map(attribute='name') | reject('in', names) | first | default(none)) }}
{% endmacro %}


{% macro _create_changelog(target, columns, settings) %}
    {%- set own = reverse_etl._own_columns() -%}
    {%- set no_statistics = ['binary', 'boolean'] -%}
    {%- set statistics = ['_snapshot_id', '_change'] -%}
    {%- for column in columns if column.name in settings.key and column.type not in no_statistics and '<' not in column.type -%}
        {%- do statistics.append(reverse_etl._quote(column.name)) -%}
    {%- endfor -%}
    {#- A workspace may have deletion vectors on by default: prune would leave the values in the files. -#}
    {%- set properties = {
        'delta.dataSkippingStatsColumns': statistics | join(','),
        'delta.autoOptimize.optimizeWrite': 'true',
        'delta.enableDeletionVectors': 'false',
    } -%}
    {%- do properties.update(reverse_etl._naming_properties(columns | map(attribute='name'))) -%}
    {%- do properties.update(config.get('tblproperties') or {}) -%}
    {%- call statement('create_changelog') -%}
        create table if not exists {{ target }} (
            {%- for column in own %}
            {{ column.name }} {{ column.type }} comment {{ reverse_etl._string(column.description) }},
            {%- endfor %}
            {%- for column in columns %}
            {{ reverse_etl._quote(column.name) }} {{ column.type }}{{ ',' if not loop.last }}
            {%- endfor %}
        )
        using delta
        cluster by (_snapshot_id)
        {{ reverse_etl._location_clause() }}
        {{ comment_clause() }}
        tblproperties (
            {%- for name, value in properties.items() %}
            {{ reverse_etl._string(name) }} = {{ reverse_etl._string(value) }}{{ ',' if not loop.last }}
            {%- endfor %}
        )
    {%- endcall -%}
{% endmacro %}


{# dbt-databricks takes the location from where the model or its catalog says. #}
{% macro _location_clause() %}{{ location_clause(adapter.build_catalog_relation(config.model)) if target.type == 'databricks' else location_clause() }}{% endmacro %}


{# The columns of a table or view, [{name, type}], with types as Spark writes them: each adapter has a way of its own. #}
{% macro _columns_of(relation) %}
    {%- set columns, cut = reverse_etl._described(relation), [] -%}
    {%- for column in columns if reverse_etl._is_cut(column.type) -%}{%- do cut.append(column) -%}{%- endfor -%}
    {%- if cut -%}
        {#- A SQL warehouse has no setting for longer types. One row without values: nothing of the relation is read. -#}
        {%- set types -%}
            select {% for column in cut %}typeof(whole.{{ reverse_etl._quote(column.name) }}) as type_{{ loop.index }}{{ ', ' if not loop.last }}{% endfor %}
            from (values (1)) as one left join {{ relation }} as whole on false
        {%- endset -%}
        {%- set whole = run_query(types).rows[0] -%}
        {%- for column in cut -%}{%- do column.update({'type': whole[loop.index0]}) -%}{%- endfor -%}
    {%- endif -%}
    {{ return(columns) }}
{% endmacro %}

{% macro _described(relation) %}
    {%- set columns = [] -%}
    {%- for row in run_query('describe table ' ~ relation).rows -%}
        {%- if not row[0] or (row[0].startswith('# ') and row[1] in [none, '', 'data_type']) -%}{{ return(columns) }}{%- endif -%}
        {%- do columns.append({'name': row[0], 'type': row[1]}) -%}
    {%- endfor -%}
    {{ return(columns) }}
{% endmacro %}

{# Whether Spark left fields out, as it does by default in the text of a long type or plan. #}
{% macro _is_cut(text) %}{{ return(modules.re.search('[.]{3} [0-9]+ more fields', text) is not none) }}{% endmacro %}


{# {name: text} #}
{% macro _table_properties(relation) %}
    {%- set properties = {} -%}
    {%- for row in run_query('show tblproperties ' ~ relation).rows -%}{%- do properties.update({row[0]: row[1]}) -%}{%- endfor -%}
    {{ return(properties) }}
{% endmacro %}


{# Whether a table has a property, as far as its properties show: of one that Spark hides, each run would set the text again, in a version of its own. #}
{% macro _has_property(present, name, value) %}{{ return(present.get(name) == value | string or '(redacted)' in (present.get(name) or '')) }}{% endmacro %}


{# A name as the text of a property: Spark shows no property whose text holds `url`, `token` and the like, as `hourly` does. No name begins with a dot. #}
{% macro _dotted(name) %}{{ return('.' ~ name | list | join('.')) }}{% endmacro %}

{# The name in such a text, or in one of a version before; none: Spark does not show it. #}
{% macro _undotted(text) %}
    {%- if not text or '(redacted)' in text -%}{{ return(none) }}{%- endif -%}
    {{ return(text[1::2] if text.startswith('.') else text) }}
{% endmacro %}


{# tblproperties of the model hold for a table that exists, too. #}
{% macro _apply_table_properties(target, existing) %}
    {%- set wanted = config.get('tblproperties') or {} -%}
    {%- if existing and wanted -%}
        {%- set present = reverse_etl._table_properties(target) -%}
        {%- for name, value in wanted.items() if not reverse_etl._has_property(present, name, value) -%}
            {%- do run_query('alter table ' ~ target ~ ' set tblproperties (' ~ reverse_etl._string(name) ~ ' = ' ~ reverse_etl._string(value) ~ ')') -%}
        {%- endfor -%}
    {%- endif -%}
{% endmacro %}


{#
  An added column is appended, a wider type is taken over; a dropped or otherwise retyped column needs a word of the user. A column that was dropped may come
  back with any type: its former values then stand under another name. The table may be wider than its head: a run that was killed after it altered the table.
  Returns {key, model: [{name, type}], names, dropped: columns of the table that the model has no more, gone, added: names of columns that the head has and
  the model not, and the other way round, widened: names of those with another type than at the head}
#}
{% macro _reconcile_columns(target, head, columns, settings) %}
    {%- set types, types_before, problems, dropped, changes = {}, {}, [], [], {'added': [], 'altered': [], 'aside': []} -%}
    {%- set found = reverse_etl._columns_of(target) -%}
    {%- set present = found[reverse_etl._own_columns() | length:] -%}
    {%- set present_names = present | map(attribute='name') | map('lower') | list -%}
    {%- for column in (head.columns if head is not none else []) -%}{%- do types_before.update({column.name | lower: column.type}) -%}{%- endfor -%}
    {%- for column in columns -%}
        {%- do types.update({column.name | lower: column.type}) -%}
        {%- if column.name | lower not in present_names -%}{%- do changes.added.append(column) -%}{%- endif -%}
    {%- endfor -%}
    {%- for column in present -%}
        {%- set type, may_change = types.get(column.name | lower), column.name not in settings.key and settings.on_column_change != 'fail' -%}
        {%- if type is none -%}
            {%- do dropped.append({'name': column.name, 'type': column.type}) -%}
        {%- elif type == column.type -%}
        {%- elif may_change and reverse_etl._is_wider(type, column.type) -%}
            {%- do changes.altered.append({'name': column.name, 'type': type}) -%}
        {%- elif may_change and types_before and column.name | lower not in types_before -%}
            {%- set former = column.name ~ '_before_' ~ (head.snapshot_id + 1) -%}
            {%- if former | lower in present_names + types.keys() | list -%}
                {%- do problems.append('column ' ~ former ~ ' stands where the former values of ' ~ column.name ~ ' have to go; expected no such column; rename it in the model') -%}
            {%- endif -%}
            {%- do changes.aside.append({'name': column.name, 'to': former}) -%}
            {%- do changes.added.append({'name': column.name, 'type': type}) -%}
            {%- do dropped.append({'name': former, 'type': column.type}) -%}
        {%- else -%}
            {%- do problems.append('column ' ~ column.name ~ ' is ' ~ type ~ ' in the model and ' ~ column.type ~ ' in the changelog; expected one type; cast it in the model, '
                ~ ('leave it out for one run (on_column_change: sync_all_columns), ' if column.name not in settings.key) ~ 'or start anew on purpose with the operation reset') -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set reconciled = {'key': settings.key, 'model': columns, 'names': columns | map(attribute='name') | list, 'dropped': dropped, 'gone': [], 'added': [], 'widened': []} -%}
    {%- for column in dropped if column.name | lower in types_before -%}{%- do reconciled.gone.append(column.name) -%}{%- endfor -%}
    {%- for column in columns if types_before -%}
        {%- if column.name | lower not in types_before -%}{%- do reconciled.added.append(column.name) -%}
        {%- elif types_before[column.name | lower] != column.type -%}{%- do reconciled.widened.append(column.name) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- do problems.extend(reverse_etl._vanished_columns(target, types_before, present_names)) -%}
    {%- do reverse_etl._refuse_columns(target, head, reconciled, settings, problems) -%}
    {%- do reverse_etl._add_header_fields(target, found) -%}
    {%- do reverse_etl._alter_columns(target, changes) -%}
    {{ return(reconciled) }}
{% endmacro %}


{# Columns of the head that the table has no more: a sync that was pushed reads what it delivered by their names. A row in the changelog names its ledger. #}
{% macro _vanished_columns(target, types, present) %}
    {%- set problems = [] -%}
    {%- for name, type in types.items() if name not in present and run_query('select 1 from ' ~ target ~ " where _snapshot_id is null and _change = 'ledger' limit 1").rows | length -%}
        {%- do problems.append('column ' ~ name ~ ' is no column of the table any more; expected it to stay, because a sync was pushed; if it was renamed, rename it back: alter table ' ~ target
            ~ ' rename column NEW_NAME to ' ~ reverse_etl._quote(name) ~ ', and rename it in the model alone; if it was dropped, give it back: alter table ' ~ target ~ ' add columns (' ~ reverse_etl._quote(name) ~ ' ' ~ type ~ '), and drop it in the model alone') -%}
    {%- endfor -%}
    {{ return(problems) }}
{% endmacro %}


{% macro _refuse_columns(target, head, columns, settings, problems) %}
    {%- for name in columns.gone if settings.on_column_change != 'sync_all_columns' -%}
        {%- do problems.append('column ' ~ name ~ ' is gone from the model; expected it to stay; give it back, or accept with meta.reverse_etl.on_column_change: sync_all_columns (rows that had a value become updates)') -%}
    {%- endfor -%}
    {%- if columns.widened and columns.gone -%}
        {%- do problems.append('columns ' ~ columns.widened | join(', ') ~ ' are wider and ' ~ columns.gone | join(', ') ~ ' gone; expected one of both in a run, or rows that lose a value would not be seen; capture them one after the other') -%}
    {%- endif -%}
    {%- if columns.added and settings.on_column_change == 'fail' -%}
        {%- do problems.append('columns ' ~ columns.added | join(', ') ~ ' are new and meta.reverse_etl.on_column_change is fail; expected the columns of snapshot ' ~ head.snapshot_id ~ '; remove them or set append_new_columns') -%}
    {%- endif -%}
    {%- if head is not none and head.key_columns != settings.key -%}
        {%- do problems.append('unique_key is ' ~ settings.key | join(', ') ~ ' and the changelog was captured by ' ~ head.key_columns | join(', ') ~ '; expected one key for the whole history; change it back, or start anew on purpose with the operation reset') -%}
    {%- endif -%}
    {%- if problems -%}
        {{ exceptions.raise_compiler_error('changelog ' ~ target ~ ': nothing was captured.\n  ' ~ problems | join('\n  ')) }}
    {%- endif -%}
{% endmacro %}


{# {name: text}: for signs in a name that Delta takes only where columns have names of their own in the files. #}
{% macro _naming_properties(names) %}
    {%- for name in names if modules.re.search('[ ,;{}()\n\t=]', name) -%}{{ return({'delta.columnMapping.mode': 'name'}) }}{%- endfor -%}
    {{ return({}) }}
{% endmacro %}


{# {name: text}: for a type whose feature Delta turns on by itself only where it makes a table, not where it changes or replaces one. #}
{% macro _type_properties(columns) %}
    {%- for column in columns if modules.re.search('(^|[<:,])timestamp_ntz($|[>,])', column.type) -%}{{ return({'delta.feature.timestampNtz': 'supported'}) }}{%- endfor -%}
    {{ return({}) }}
{% endmacro %}


{# Delta renames a column where columns have names of their own in the files. #}
{% macro _alter_columns(target, changes) %}
    {%- if changes.aside or reverse_etl._naming_properties(changes.added | map(attribute='name')) -%}
        {#- Delta refuses another mode where a table is mapped by `id`. #}
        {%- if reverse_etl._table_properties(target).get('delta.columnMapping.mode', 'none') | lower == 'none' -%}
            {%- do run_query('alter table ' ~ target ~ " set tblproperties ('delta.columnMapping.mode' = 'name')") -%}
        {%- endif -%}
        {%- for column in changes.aside -%}{%- do run_query('alter table ' ~ target ~ ' rename column ' ~ reverse_etl._quote(column.name) ~ ' to ' ~ reverse_etl._quote(column.to)) -%}{%- endfor -%}
    {%- endif -%}
    {%- if changes.added -%}
        {%- for name, value in reverse_etl._type_properties(changes.added).items() if reverse_etl._table_properties(target).get(name) != value -%}
            {%- do run_query('alter table ' ~ target ~ " set tblproperties ('" ~ name ~ "' = '" ~ value ~ "')") -%}
        {%- endfor -%}
        {%- call statement('add_columns') -%}
            alter table {{ target }} add columns ({% for column in changes.added %}{{ reverse_etl._quote(column.name) }} {{ column.type }}{{ ', ' if not loop.last }}{% endfor %})
        {%- endcall -%}
    {%- endif -%}
    {%- if changes.altered -%}
        {%- do run_query('alter table ' ~ target ~ " set tblproperties ('delta.enableTypeWidening' = 'true')") -%}
        {%- for column in changes.altered -%}{%- do run_query('alter table ' ~ target ~ ' alter column ' ~ reverse_etl._quote(column.name) ~ ' type ' ~ column.type) -%}{%- endfor -%}
    {%- endif -%}
{% endmacro %}
