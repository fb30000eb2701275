{# The model query behind a name: its columns are known before it runs, and it runs once. #}
{% macro _model_query(capture_uuid, settings, head=none) %}
    {%- if config.get('contract').enforced -%}
        {%- set checked = get_assert_columns_equivalent(model.compiled_code) -%}
    {%- endif -%}
    {%- if settings.compare == 'except' and not reverse_etl._is_partial() -%}
        {%- set relation = reverse_etl._temporary_relation(this, '__model_', capture_uuid) -%}
        {%- call statement('model_query') -%} create table {{ relation }} using {{ reverse_etl._private_format() }} as {{ model.compiled_code }} {%- endcall -%}
    {%- else -%}
        {%- set relation = reverse_etl._quote(this.identifier ~ '__model_' ~ capture_uuid[:8]) -%}
        {%- call statement('model_query') -%} create or replace temporary view {{ relation }} as {{ model.compiled_code }} {%- endcall -%}
    {%- endif -%}
    {%- set columns, types = [], {} -%}
    {%- for column in reverse_etl._columns_of(relation) -%}
        {%- do types.update({column.name: column.type}) -%}
        {%- if column.name not in settings.only_captured -%}{%- do columns.append(column) -%}{%- endif -%}
    {%- endfor -%}
    {%- set query = {'name': relation, 'sql': model.compiled_code, 'columns': columns, 'types': types, 'stored': relation is not string} -%}
    {%- set problems = reverse_etl._variables_in(types) + reverse_etl._misspelt_options(types, settings.capture, head) + reverse_etl._model_column_problems(columns, settings, head) -%}
    {%- if problems -%}
        {%- do reverse_etl._drop_model_query(query) -%}
        {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ': nothing was captured.\n  ' ~ problems | unique | join('\n  ')) }}
    {%- endif -%}
    {{ return(query) }}
{% endmacro %}


{# The runner's plugin hears it, and raises what the syncs of this changelog have against these columns: nothing is written yet. #}
{% macro _tell_columns(columns) %}
    {%- do log('dbt-reverse-etl: columns of ' ~ model.unique_id ~ ': ' ~ tojson(columns)) -%}
    {%- set is_heard = env_var('DBT_REVERSE_ETL_LISTENS', '') or env_var('DBT_REVERSE_ETL_PUSH', '') | trim | lower == 'off' or var('reverse_etl_pushed_elsewhere', false) -%}
    {%- set syncs = [] if is_heard else reverse_etl._syncs_of(model) -%}
    {%- if syncs -%}
        {%- do exceptions.warn(
            'changelog ' ~ model.name ~ ': found no runner in this dbt, so nobody pushes ' ~ syncs | join(', ') ~ "; expected the Python package dbt-reverse-etl beside dbt. "
            ~ 'Next: pip install it, or run dbt through `dbt-reverse-etl run`; where a Python model or another process pushes, set vars: {reverse_etl_pushed_elsewhere: true}'
        ) -%}
    {%- endif -%}
{% endmacro %}


{# Names of the syncs that deliver a changelog. #}
{% macro _syncs_of(model) %}
    {%- set names = [] -%}
    {%- for exposure in graph.exposures.values() if model.unique_id in exposure.depends_on.nodes -%}
        {%- if 'reverse_etl' in (exposure.get('config', {}).get('meta') or exposure.get('meta') or {}) -%}{%- do names.append(exposure.name) -%}{%- endif -%}
    {%- endfor -%}
    {{ return(names) }}
{% endmacro %}


{% macro _drop_model_query(query) %}
    {%- call statement('drop_model_query') -%} drop {{ 'table' if query.stored else 'view' }} if exists {{ query.name }} {%- endcall -%}
{% endmacro %}


{# Of names, also of columns that are only read: quotes keep no variable from Spark. A blank in it does. #}
{% macro _variables_in(names) %}
    {%- set problems = [] -%}
    {%- for name in names if modules.re.search('[$][{][^ \\t\\n\\x0b\\f\\r]+?[}]', name) -%}
        {%- do problems.append('column ' ~ name ~ ' has a name in which Spark replaces a variable; expected one without ${...}; rename it in the model') -%}
    {%- endfor -%}
    {{ return(problems) }}
{% endmacro %}


{#
  A column that the changelog leaves out by its name: Spark finds it in another case, too, and it would stay. Where the changelog has that of `deleted`
  already, it does stay: it is true in no row. An option of a project's own strategy may mean something else.
#}
{% macro _misspelt_options(types, capture, head=none) %}
    {%- set problems = [] -%}
    {%- set option = {'timestamp': 'deleted', 'feed': 'operation'}.get(capture.get('strategy')) -%}
    {%- set found = capture.get(option) -%}
    {%- set kept = (head.columns if head is not none else []) | map(attribute='name') | list -%}
    {%- for name in types if found is string and found not in types and name | lower == found | lower and not (option == 'deleted' and name in kept) -%}
        {%- do problems.append('meta.reverse_etl.capture.' ~ option ~ ": found '" ~ found ~ "'; expected '" ~ name ~ "', as the model spells it; correct the option (case counts)"
            ~ (', and, because the changelog has the column already, set meta.reverse_etl.on_column_change: sync_all_columns for one run, in which its rows become updates' if name in kept)) -%}
    {%- endfor -%}
    {{ return(problems) }}
{% endmacro %}


{% macro _model_column_problems(columns, settings, head=none) %}
    {%- set problems = [] -%}
    {%- set reserved = (reverse_etl._own_columns() | map(attribute='name') | list) + [
        '_stage', '_old_snapshot_id', '_copies', '_row_number', '_next', '_reason', '_key', '_bucket', '_order', '_now', '_position', '_then', '_payload',
        '_changed', '_operation', '_event_id', '_before_hash', '_after_hash', '_maybe', '_doubt', '_asked_by', '_kept', '_gone', '_rank', '_known', '_old', '_reached', '_next_label', '_known_before', '_reverse_etl_row', '_reverse_etl_label',
    ] -%}
    {#- Where a push has nothing but the key beside its own columns. A changelog that is there may have no push that uses them. -#}
    {%- set reserved_in_key = '_place|_is_shared|_left|_then_(hash|payload)|_old_(doubt|maybe|asked_by)|_(claimed|mirrored)_[0-9]+' -%}
    {%- for column in columns -%}
        {%- if column.name | lower in reserved or head is none and column.name in settings.key and modules.re.fullmatch(reserved_in_key, column.name | lower) -%}
            {%- do problems.append('column ' ~ column.name ~ ' has a name that the changelog, its diff or a push uses; expected another name; rename it in the model') -%}
        {%- endif -%}
        {%- if 'map<' in (column.type[4:] if column.type.startswith('map<') else column.type) -%}
            {%- do problems.append('column ' ~ column.name ~ ' has a map inside another type (' ~ column.type ~ '), which has no canonical order; expected a map at the top, or none; use array_sort(map_entries(...)) in the model') -%}
        {%- endif -%}
        {%- for name in reverse_etl._fields_that_need_quotes(column.type) -%}
            {%- do problems.append('column ' ~ column.name ~ " has a field '" ~ name ~ "' inside it, a name that Spark shows without the quotes that it needs; expected the letters a to z, digits and _; rename it in the model") -%}
        {%- endfor -%}
        {%- for name in reverse_etl._fields_that_repeat(column.type) -%}
            {%- do problems.append('column ' ~ column.name ~ " has two fields '" ~ name ~ "' in one struct, which a Delta table cannot keep; expected each name once, whatever its case; rename one in the model") -%}
        {%- endfor -%}
        {%- for kind, found in reverse_etl._refused_types().items() if modules.re.search('(^|[<:,])' ~ kind ~ '($|[ (>,])', column.type) -%}
            {%- do problems.append('column ' ~ column.name ~ ' ' ~ found) -%}
        {%- endfor -%}
        {%- if column.type.startswith('map<') and settings.compare == 'except' -%}
            {%- do problems.append('column ' ~ column.name ~ ' is a map, which EXCEPT refuses; expected a comparable type; use meta.reverse_etl.compare: hash, or array_sort(map_entries(...)) in the model') -%}
        {%- endif -%}
    {%- endfor -%}
    {%- for name in settings.key -%}
        {%- set types = columns | selectattr('name', 'equalto', name) | map(attribute='type') | list -%}
        {%- set spelled = columns | map(attribute='name') | map('lower') | select('equalto', name | lower) | list -%}
        {%- if not types and spelled -%}
            {%- do problems.append("unique_key '" ~ name ~ "' is in another case in the model; expected one spelling; write `... as " ~ name ~ "` in the model, or, if nothing was captured yet, correct unique_key") -%}
        {%- elif not types -%}
            {%- do problems.append("unique_key '" ~ name ~ "' is no column of the model; expected one of " ~ columns | map(attribute='name') | join(', ') ~ '; select it or correct unique_key (case counts)') -%}
        {%- elif '<' in types[0] or types[0] in ('float', 'double') -%}
            {%- do problems.append("unique_key '" ~ name ~ "' is of type " ~ types[0] ~ ', which does not identify a row safely; expected a string, number, date, timestamp, boolean or binary; cast it in the model') -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set grouping = [] -%}
    {%- for column in columns if not column.type.startswith('map<') -%}{%- do grouping.append(column.name | lower) -%}{%- endfor -%}
    {%- for name in settings.capture.recapture_by or [] if name | lower not in grouping -%}
        {%- do problems.append("meta.reverse_etl.capture.recapture_by: found '" ~ name ~ "'; expected a column of the model that is no map (" ~ grouping | join(', ') ~ '); correct it') -%}
    {%- endfor -%}
    {{ return(problems) }}
{% endmacro %}


{# A type without the numbers of `decimal(5,2)` and the like: a parenthesis of a field's name has its colon behind it. #}
{% macro _without_parameters(type) %}{{ return(modules.re.sub('(?:[(][0-9, ]*[)]|(?:(?<=geometry)|(?<=geography))[(][^()]*[)])(?=[,> ]|$)', '', type)) }}{% endmacro %}


{# Names inside a type that Spark reads back only in quotes, and shows without: no letters of ASCII, a number, or a sign of the type itself. #}
{% macro _fields_that_need_quotes(type) %}
    {%- set found, plain = [], reverse_etl._without_parameters(type) -%}
    {%- for name in modules.re.findall('[<,]([^:<>,]*):', plain) if not modules.re.fullmatch('(?i)(?![0-9]+(e[0-9]+)?(bd|[lsydf])?$)[a-z0-9_]+', name) or not name.isascii() -%}{%- do found.append(name) -%}{%- endfor -%}
    {#- A struct has no part without a type, and a map but one comma. -#}
    {{ return(found + modules.re.findall('[<,]([^:<>,]*:[^:<>,]*):', plain) + modules.re.findall('(?:struct<|,)([^:<>,]*,[^:<>,]*):', plain)) }}
{% endmacro %}


{% macro _fields_that_repeat(type) %}
    {%- set rest, found = namespace(type=reverse_etl._without_parameters(type)), [] -%}
    {#- From the innermost type on: what was looked at becomes a word. -#}
    {%- for _ in range(type.count('<')) -%}
        {%- for fields in modules.re.findall('struct<([^<>]*)>', rest.type) -%}
            {%- set names = modules.re.findall('(?:^|,)([^:,]*):', fields) | map('lower') | list -%}
            {%- for name in names | unique if names | select('equalto', name) | list | length > 1 -%}{%- do found.append(name) -%}{%- endfor -%}
        {%- endfor -%}
        {%- set rest.type = modules.re.sub('[a-z]+<[^<>]*>', 'nested', rest.type) -%}
    {%- endfor -%}
    {{ return(found) }}
{% endmacro %}


{% macro _refused_spatial() %}{{ return('is or holds a spatial value, which cannot be hashed; expected a comparable type; use st_asbinary(...) in the model') }}{% endmacro %}


{# {type as it is written: what is said of a column that is or holds it} #}
{% macro _refused_types() %}
    {{ return({
        '\\w+ collate \\w+': 'is or holds a text with a collation, which takes different texts for one; expected a plain string; use cast(... as string) in the model',
        'variant': 'is or holds a variant, which cannot be compared; expected a comparable type; use to_json(...) in the model',
        'interval': 'is or holds an interval, which a Delta table cannot keep; expected a type that it keeps; use cast(... as string) in the model',
        'geometry': reverse_etl._refused_spatial(), 'geography': reverse_etl._refused_spatial(),
        'time': 'is or holds a time of day, which a Delta table cannot keep; expected a type that it keeps; use cast(... as string) in the model',
        '(?:void|null)': 'is or holds what is always NULL and has no type; expected a type; use cast(null as ...) in the model',
    }) }}
{% endmacro %}


{# --empty and --sample read a part of the rows: nothing may be concluded from them. #}
{% macro _is_partial() %}
    {{ return(flags.EMPTY or invocation_args_dict.get('sample')) }}
{% endmacro %}
