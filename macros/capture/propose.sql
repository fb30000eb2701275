{#
  Candidate keys: what a capture compares when it does not compare everything. The diff decides what changed, so a strategy may propose too much,
  never too little. A strategy is a macro capture_<strategy>(capture), of this package or of the user's own project.

    capture: {relation, columns, query, options, since, label, labels}; since: the positions in the head's header, or none: as if for the first time;
    label, labels: of a feed (see _parts_by_label)

  It returns a dict with
    problem       why the changes since then are not known: everything is compared, and the run says why
    positions     {name: text}: how far its inputs will have been read at least; read before anything else. A name says what was read: another input, another name
    candidates    query of the keys that may have changed
    measures      {name: aggregate over the candidates}: more positions; a name that ends in / gives a JSON object of them; NULL: the known position stays
    refuse        {aggregate over candidates, true where they are wrong: why}
    live          filter of the model's rows: the others count as deleted
    carries_rows  the candidates are the rows of the model, those with `_gone` deleted
    only_changes  the model gives changes, not an image: there is nothing else to compare with
    compare       a diff of its own: a macro compare_<diff>, as in compare.sql; its `query.rows` are the candidates
    unreadable    the query of the candidates may fail, and then everything is compared: why
    temporary     tables of its own that the capture drops at its end
#}
{% macro _propose(target, head, columns, query, capture_uuid, settings, labels=none) %}
    {%- set options = settings.capture -%}
    {%- set known = {} -%}
    {%- do known.update(head.positions if head is not none else {}) -%}
    {%- do known.pop('reverse_etl/inputs', none) -%}
    {%- if options.strategy == 'compare' -%}
        {#- Should a strategy come back that goes on from these positions. -#}
        {%- if known -%}{%- do known.update(reverse_etl._way_of_rows(reverse_etl._sql_of_rows(), settings.session)) -%}{%- endif -%}
        {%- if query.inputs -%}{%- do known.update({'reverse_etl/inputs': query.inputs}) -%}{%- endif -%}
        {{ return({'facts': {'kind': 'capture', 'positions': known, 'unfinished': true}, 'note': '', 'drift_against': none, 'temporary': []}) }}
    {%- endif -%}
    {%- set asked = reverse_etl._asked(target, head, columns, query, settings, labels) -%}
    {%- set proposal = reverse_etl._proposal(asked) -%}
    {#- Rows from events follow from no SQL: a strategy that comes back to its positions compares everything. -#}
    {%- if proposal.only_changes -%}{%- do known.pop('reverse_etl/query', none) -%}{%- endif -%}
    {%- set everything = reverse_etl._unknown_since(head, columns, proposal) -%}
    {%- set due = options.full_compare_every and head is not none and head.since_reconcile + 1 >= options.full_compare_every -%}
    {%- set stored, temporary = none, proposal.temporary | list -%}
    {%- if not everything -%}
        {%- set stored = reverse_etl._store_candidates(target, head, columns, query, capture_uuid, settings, proposal, temporary) -%}
    {%- endif -%}
    {%- if stored is none -%}
        {%- set everything = everything or proposal.unreadable -%}
        {%- do asked.update({'since': none}) -%}
        {%- set proposal = reverse_etl._proposal(asked) -%}
        {%- set measured = reverse_etl._measured('(' ~ proposal.candidates ~ ')', proposal, columns, settings) if proposal.candidates else {'count': none, 'positions': {}} -%}
        {#- What was read is everything, so a position that it does not give is none. -#}
        {%- for name in proposal.measures if not proposal.only_changes -%}{%- do known.pop(name, none) -%}{%- endfor -%}
    {%- else -%}
        {%- set measured = reverse_etl._measured(proposal.get('measured_on', stored), proposal, columns, settings, stored if head is not none and not due else none) -%}
        {%- set too_many = not proposal.only_changes and measured.count > options.full_above * head.live_rows -%}
        {%- set everything = 'reconcile' if due else measured.count ~ ' of ' ~ head.live_rows ~ ' keys may have changed' if too_many else none -%}
    {%- endif -%}
    {%- do query.update(reverse_etl._rows_to_compare(query, columns, proposal, none if everything else {'relation': stored, 'ranges': measured.ranges})) -%}
    {%- set positions = {} -%}
    {%- for some in [known, proposal.positions, measured.positions] -%}{%- do positions.update(some) -%}{%- endfor -%}
    {{ return({
        'facts': {
            'kind': 'reconcile' if everything == 'reconcile' else 'capture', 'positions': positions,
            'since_reconcile': 0 if everything or not options.full_compare_every else head.since_reconcile + 1,
            'unfinished': everything or proposal.only_changes,
        },
        'drift_against': stored if everything == 'reconcile' else none,
        'note': ' (full compare: ' ~ everything ~ ')' if everything and head is not none else '',
        'temporary': temporary,
    }) }}
{% endmacro %}


{# Why nobody can know what changed since the head, or none. #}
{% macro _unknown_since(head, columns, proposal) %}
    {%- if proposal.only_changes -%}{{ return(none) }}
    {%- elif head is none -%}{{ return('the first capture') }}
    {%- elif not head.positions | reject('equalto', 'reverse_etl/inputs') | list -%}{{ return('the head has no positions, as after a rollback') }}
    {%- endif -%}
    {%- set known, now = head.positions.get('reverse_etl/query'), proposal.positions['reverse_etl/query'] -%}
    {%- set other_sql = 'the last capture left rows behind' if head.quarantined else 'the last capture was by a feed, left rows behind, or is of an earlier build' if not known
        else 'the SQL of the model or of a view is another one' if known != now else none -%}
    {%- set session_then, session = head.positions.get('reverse_etl/session'), proposal.positions.get('reverse_etl/session') -%}
    {%- set other_session = 'the session has other settings: ' ~ session ~ '; before: ' ~ session_then if session and session_then and session != session_then else none -%}
    {%- set other_columns = head.columns | map(attribute='name') | map('lower') | sort != columns.names | map('lower') | sort -%}
    {{ return([
        proposal.problem, other_session, other_sql or ('the columns of the model are others' if other_columns else none),
    ] | select | join('; ') or none) }}
{% endmacro %}


{% macro _asked(target, head, columns, query, settings, labels) %}
    {{ return({
        'relation': target, 'columns': columns, 'query': query, 'options': settings.capture, 'since': head.positions if head is not none else none, 'label': settings.label, 'labels': labels, 'sql': none, 'session': settings.session,
    }) }}
{% endmacro %}


{# Positions that name what decides the rows beside the inputs: the SQL, and the settings of the session, where they are known. #}
{% macro _way_of_rows(sql, session) %}{{ return({'reverse_etl/query': sql, 'reverse_etl/session': session} if session else {'reverse_etl/query': sql}) }}{% endmacro %}


{# What the strategy says, every field present. #}
{% macro _proposal(asked) %}
    {%- set name = 'capture_' ~ asked.options.strategy -%}
    {%- set proposal = {
        'problem': none, 'positions': {}, 'candidates': none, 'measures': {}, 'refuse': {}, 'live': none, 'carries_rows': false, 'only_changes': false, 'compare': none,
        'unreadable': none, 'temporary': [],
    } -%}
    {%- set told = (reverse_etl[name] if name in reverse_etl else context[name])(asked) -%}
    {%- for field in told if field not in proposal -%}
        {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ': ' ~ name ~ " returned the field '" ~ field ~ "'; expected some of " ~ proposal | join(', ') ~ '; nothing was captured. Next: correct the macro') }}
    {%- endfor -%}
    {%- do proposal.update(told) -%}
    {#- Rows that did not change are as the SQL before gave them. -#}
    {%- if not proposal.only_changes -%}
        {%- if asked.sql is none -%}{%- do asked.update({'sql': reverse_etl._sql_of_rows()}) -%}{%- endif -%}
        {%- do proposal.positions.update(reverse_etl._way_of_rows(asked.sql, asked.session)) -%}
    {%- endif -%}
    {{ return(proposal) }}
{% endmacro %}


{# A hash of the SQL that gives the rows: the model's, that of its views in the warehouse, and of the functions that they call. #}
{% macro _sql_of_rows() %}
    {%- set parts = [reverse_etl._without_comments(model.compiled_code)] -%}
    {%- for view in reverse_etl._views_of(model).values() | sort -%}{%- do parts.append(reverse_etl._sql_of_view(view)) -%}{%- endfor -%}
    {%- set functions = reverse_etl._functions_in(parts | join('\n'), []) -%}
    {{ return(local_md5((parts + functions) | join)) }}
{% endmacro %}


{#
  What the warehouse says of the user's functions that this SQL calls, and of those that these call, but for when they were made: without a statement,
  where every name before a parenthesis is known.
    asked   names that need no other look; this adds to them
#}
{% macro _functions_in(sql, asked) %}
    {%- set listed, texts = {}, [] -%}
    {%- set known = reverse_etl._steady_functions() + reverse_etl._built_in_functions() + reverse_etl._words_before_parentheses() -%}
    {%- for schema, name in reverse_etl._calls_in(sql) | unique -%}
        {%- set function = name.strip('`') | lower -%}
        {%- set is_known = schema.replace('`', '') | lower in ['builtin', 'system.builtin'] or not schema and function in known -%}
        {%- if not is_known and schema ~ '.' ~ function not in asked -%}
            {%- do asked.append(schema ~ '.' ~ function) -%}
            {%- if schema not in listed -%}{%- do listed.update({schema: reverse_etl._functions_of_users(schema)}) -%}{%- endif -%}
            {%- for found in listed[schema] if (found.split('.') | last | lower) == function -%}
                {%- set lines = run_query('describe function extended `' ~ found.split('.') | join('`.`') ~ '`').rows | map(attribute=0) | join('\n') -%}
                {%- do texts.append(found ~ modules.re.sub('(?i)create ?time[^,}\n]*', '', lines)) -%}
                {#- A comment, or Python, has names before parentheses, too. -#}
                {%- set is_sql = modules.re.search('(?im)^language:[ \t]*(?!sql\\s*$)\\S', lines) is none -%}
                {%- if is_sql -%}{%- do texts.extend(reverse_etl._functions_in(reverse_etl._body_of(lines), asked)) -%}{%- endif -%}
            {%- endfor -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(texts) }}
{% endmacro %}

{# Before Spark 4.2 the body is in the JSON of the line `Usage`. #}
{% macro _body_of(described) %}
    {%- set usage = modules.re.search('(?m)^Usage: *([{].*[}]) *$', described) -%}
    {%- set usage = fromjson(usage.group(1), {}) if usage else {} -%}
    {{ return(usage.get('exprText') or usage.get('queryText') or described.partition('\nBody:')[2]) }}
{% endmacro %}

{# Names before a parenthesis: [(schema, or '', name)] #}
{% macro _calls_in(sql) %}
    {%- set name = '(?:\\w+|`(?:[^`]|``)+`)' -%}
    {#- Without comments, literals, the columns of a view, and names in quotes that are no part of a call. -#}
    {%- set plain = modules.re.sub('(?s)(`(?:[^`]|``)*`)(?=\\s*[.(])|`(?:[^`]|``)*`|/[*].*?[*]/|--[^\n]*|\'(?:[^\'\\\\]|\\\\.)*\'|"(?:[^"\\\\]|\\\\.)*"|CREATE VIEW .*?\nAS ', '\\1 ', sql) -%}
    {#- A type or an alias is no call; nor is a CTE before its columns. -#}
    {%- set other = '(?:\\bas\\s+|::\\s*|[)]\\s*)' ~ name ~ '(?=\\s*[(])' -%}
    {%- set cte = '[^()]*[)]\\s*(?:max\\s+recursion\\s+level\\s+\\d+\\s*)?as\\s*[(]\\s*(?:[(]|(?:select|with|from|values|table)\\b)' -%}
    {%- set calls = [] -%}
    {%- for schema, called in modules.re.findall('(?i)' ~ other ~ '|((?:' ~ name ~ '\\s*[.])*)(' ~ name ~ ')\\s*[(](?!' ~ cte ~ ')', plain) if called -%}
        {%- do calls.append((modules.re.findall(name, schema) | join('.'), called)) -%}
    {%- endfor -%}
    {{ return(calls) }}
{% endmacro %}

{# Names of the user's functions in a schema; none where there is no such schema. #}
{% macro _functions_of_users(schema) %}
    {%- set catalog, _, name = schema.replace('`', '').lower().rpartition('.') -%}
    {%- if catalog ~ '.' ~ name in ['.', '.session', 'system.session'] -%}{{ return(reverse_etl._shown('show user functions')) }}{%- endif -%}
    {%- set is_known = (not catalog or catalog in reverse_etl._shown('show catalogs')) and name in reverse_etl._shown('show schemas' ~ (' in `' ~ catalog ~ '`' if catalog else '')) -%}
    {{ return(reverse_etl._shown('show user functions in ' ~ schema) if is_known else []) }}
{% endmacro %}

{# Spark shows some names in quotes. #}
{% macro _shown(statement) %}{{ return(run_query(statement).rows | map(attribute=0) | map('lower') | map('replace', '`', '') | list) }}{% endmacro %}

{# Functions of Spark that `_steady_functions` has not. Only those of every release that this package takes: another name may be a user's function. #}
{% macro _built_in_functions() %}
    {{ return('
        aes_decrypt aes_encrypt assert_true bitmap_bit_position bitmap_bucket_number bitmap_construct_agg bitmap_count bitmap_or_agg collations count_min_sketch curdate current_catalog
        current_database current_date current_schema current_timestamp current_timezone current_user e from_avro from_protobuf from_xml histogram_numeric hll_sketch_agg hll_sketch_estimate
        hll_union hll_union_agg input_file_block_length input_file_block_start input_file_name is_valid_utf8 is_variant_null java_method localtimestamp make_valid_utf8
        monotonically_increasing_id now parse_json pi raise_error rand randn random randstr range reflect rint schema_of_avro schema_of_csv schema_of_variant schema_of_variant_agg
        schema_of_xml session_user shuffle spark_partition_id sql_keywords to_avro to_protobuf to_variant_object to_xml try_aes_decrypt try_make_interval try_make_timestamp_ltz
        try_make_timestamp_ntz try_parse_json try_reflect try_validate_utf8 try_variant_get typeof uniform unix_timestamp user uuid validate_utf8 variant_explode variant_explode_outer
        variant_get version xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short
    '.split()) }}
{% endmacro %}

{% macro _words_before_parentheses() %}
    {{ return('
        select from where having on using by as in is any some all distinct union except intersect minus exists join inner outer left right full cross semi anti lateral view table values over
        partition filter group within cube rollup sets pivot unpivot for when then else end case between like ilike rlike limit offset interval with recursive tablesample repeatable qualify
        and or not div binary string int integer bigint smallint tinyint float double boolean
    '.split()) }}
{% endmacro %}

{# The views of dbt from which a node reads, through others and ephemeral models, too: {unique id: name in the warehouse} #}
{% macro _views_of(node, seen=[]) %}
    {%- set found, is_own = {}, node.unique_id == model.unique_id -%}
    {%- for name in node.depends_on.nodes if name in graph.nodes and (is_own or name not in seen) -%}
        {%- set input = graph.nodes[name] -%}
        {%- do seen.append(name) -%}
        {%- if input.config.materialized == 'view' -%}
            {#- With --defer a view behind a view may stand elsewhere. -#}
            {%- if is_own -%}{%- do found.update({name: reverse_etl._relation_of(input).render()}) -%}
            {%- elif adapter.get_relation(input.database, input.schema, input.alias) is not none -%}{%- do found.update({name: input.relation_name}) -%}
            {%- endif -%}
        {%- endif -%}
        {%- if input.config.materialized in ('view', 'ephemeral') -%}{%- do found.update(reverse_etl._views_of(input, seen)) -%}{%- endif -%}
    {%- endfor -%}
    {{ return(found) }}
{% endmacro %}


{# The candidates in a table of their own: they are read several times and counted. None where they cannot be read. #}
{% macro _store_candidates(target, head, columns, query, capture_uuid, settings, proposal, temporary) %}
    {%- set stored = reverse_etl._temporary_relation(target, '__candidates_', capture_uuid) -%}
    {%- if not reverse_etl._store_private(stored, proposal.candidates, may_fail=proposal.unreadable is not none) -%}{{ return(none) }}{%- endif -%}
    {%- do temporary.append(stored) -%}
    {%- set together = settings.capture.recapture_by -%}
    {%- if together -%}
        {%- set wider = reverse_etl._temporary_relation(target, '__groups_', capture_uuid) -%}
        {%- call statement('candidates') -%}
            create table {{ wider }} using {{ reverse_etl._private_format() }} as {{ reverse_etl._whole_groups(target, head, columns, query, stored, together) }}
        {%- endcall -%}
        {%- do temporary.append(wider) -%}
        {%- do proposal.update({'carries_rows': false, 'compare': none, 'measured_on': stored}) -%}
        {{ return(wider) }}
    {%- endif -%}
    {{ return(stored) }}
{% endmacro %}


{# Every key of the groups to which a candidate belongs or belonged: an aggregate over a group changes in all of its rows. #}
{% macro _whole_groups(target, head, columns, query, stored, together) %}
    {%- set key = reverse_etl._columns(columns.key) -%}
    {%- set groups = reverse_etl._columns(together) -%}
    {%- set image = reverse_etl._image(target, columns.key, columns.key + (together | reject('in', columns.key) | list), head.base, head.snapshot_id, newest=true) %}
    with image as ({{ image }}),
    groups as (
        select {{ groups }} from {{ query.name }} q left semi join {{ stored }} c on {{ reverse_etl._same_key(columns.key, 'q', 'c') }}
        union
        select {{ groups }} from image i left semi join {{ stored }} c on {{ reverse_etl._same_key(columns.key, 'i', 'c') }}
    )
    select {{ key }} from {{ query.name }} q left semi join groups g on {{ reverse_etl._same_group(together, 'q', 'g') }}
    union
    select {{ key }} from image i left semi join groups g on {{ reverse_etl._same_group(together, 'i', 'g') }}
    union
    select {{ key }} from {{ stored }}
{% endmacro %}

{% macro _same_group(names, left, right) -%}
    {% for name in names %}{{ left }}.{{ reverse_etl._quote(name) }} <=> {{ right }}.{{ reverse_etl._quote(name) }}{{ ' and ' if not loop.last }}{% endfor %}
{%- endmacro %}


{# How many keys there are, how far they lead, and where those lie that are compared: {count, positions, ranges} #}
{% macro _measured(candidates, proposal, columns, settings, compared=none) %}
    {#- Where there is nothing else to compare with, it does not matter how many they are. -#}
    {%- set wanted = ['0' if proposal.only_changes else 'count(distinct ' ~ reverse_etl._columns(columns.key) ~ ')'] + proposal.measures.values() | list + proposal.refuse | list -%}
    {%- set by = reverse_etl._range_column(columns) if compared else none -%}
    {%- if by -%}{%- do wanted.append('(' ~ reverse_etl._occupied_cells(compared, by) ~ ')') -%}{%- endif -%}
    {%- set row = run_query('select ' ~ wanted | join(', ') ~ ' from ' ~ candidates).rows[0] -%}
    {%- for problem in proposal.refuse.values() -%}
        {%- if row[1 + proposal.measures | length + loop.index0] -%}
            {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ': ' ~ reverse_etl._nothing_captured(settings) ~ '. capture.' ~ problem) }}
        {%- endif -%}
    {%- endfor -%}
    {%- set positions = {} -%}
    {%- for name in proposal.measures -%}
        {%- set text = row[1 + loop.index0] -%}
        {%- if text is none -%}
        {%- elif name.endswith('/') -%}
            {%- for part, value in fromjson(text).items() -%}{%- do positions.update({name ~ part: value | string}) -%}{%- endfor -%}
        {%- else -%}
            {%- do positions.update({name: text | string}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return({'count': row[0] | int, 'positions': positions, 'ranges': reverse_etl._in_cells(by, fromjson(row[-1] or 'null')) if by else none}) }}
{% endmacro %}


{# What the diff reads: {rows: text behind `from`; candidates: those that are compared (see _rows_of), or none for all; compare: the diff, or none for that of the settings} #}
{% macro _rows_to_compare(query, columns, proposal, candidates) %}
    {%- set live = proposal.live or 'true' -%}
    {%- if candidates is none -%}
        {%- set rows = '(select * from ' ~ query.name ~ ' where ' ~ live ~ ')' -%}
    {%- elif proposal.compare -%}
        {%- set rows = candidates.relation | string -%}
    {%- elif proposal.carries_rows -%}
        {%- set rows = '(select * from ' ~ candidates.relation ~ ' where not _gone)' -%}
    {%- else -%}
        {%- set rows = '(select * from ' ~ reverse_etl._rows_of(query.name, live, columns.key, candidates) ~ ')' -%}
    {%- endif -%}
    {{ return({'rows': rows, 'candidates': candidates, 'compare': proposal.compare if candidates is not none else none}) }}
{% endmacro %}


{# Changes that the candidates had not named: {count} of the stage. #}
{% macro _drift(stage, candidates, columns) %}
    {{ return(run_query(
        "select count(*) from " ~ stage ~ " s left anti join " ~ candidates ~ " c on " ~ reverse_etl._same_key(columns.key, 's', 'c')
        ~ " where s._stage in ('insert', 'update', 'delete')"
    ).rows[0][0] | int) }}
{% endmacro %}


{# What the model depends on, by the name that stands in options: {name of a model, seed or snapshot, or source.table: its nodes, of which one is expected} #}
{% macro _inputs() %}
    {%- set known = {} -%}
    {%- for id in model.depends_on.nodes -%}
        {%- set node = graph.nodes.get(id) or graph.sources.get(id) -%}
        {%- if node -%}
            {%- do known.setdefault((node.source_name ~ '.' ~ node.name) if node.resource_type == 'source' else node.name, []).append(node) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(known) }}
{% endmacro %}

{# Versions of a model, or models of several packages. #}
{% macro _several(name, nodes) -%}
    found {{ name }} as the name of {{ nodes | map(attribute='unique_id') | sort | join(', ') }}; expected one thing of that name among those that the model depends on; read the other through a model of another name
{%- endmacro %}


{# The relation that an option names. #}
{% macro _input(asked, option) %}
    {%- set name = asked.options[option] -%}
    {%- set known = reverse_etl._inputs() -%}
    {%- if name not in known -%}
        {{ exceptions.raise_compiler_error(
            'changelog ' ~ model.name ~ ': capture.' ~ option ~ ": found '" ~ name ~ "'; expected something that the model depends on (" ~ (known | join(', ') or 'it depends on nothing')
            ~ "); correct it, or add the line: -- depends_on: {{ ref('...') }} or {{ source('...', '...') }}"
        ) }}
    {%- endif -%}
    {%- if known[name] | length > 1 -%}
        {{ exceptions.raise_compiler_error('changelog ' ~ model.name ~ ': capture.' ~ option ~ ': ' ~ reverse_etl._several(name, known[name])) }}
    {%- endif -%}
    {{ return(reverse_etl._relation_of(known[name][0]).render()) }}
{% endmacro %}


{# Where an input stands for this run: --defer may read it elsewhere than the graph says. Its `render()` is the name alone, also under --empty and --sample. #}
{% macro _relation_of(input) %}
    {{ return(source(input.source_name, input.name) if input.resource_type == 'source' else ref(input.package_name, input.name, v=input.get('version'))) }}
{% endmacro %}


{# The type of the model's column that an option names, by which positions go. #}
{% macro _position_type(capture, option) %}
    {%- set name, where = capture.options[option], 'changelog ' ~ model.name ~ ': capture.' ~ option -%}
    {%- if name not in capture.query.types -%}
        {{ exceptions.raise_compiler_error(where ~ ": found '" ~ name ~ "'; expected a column of the model (" ~ capture.query.types | join(', ') ~ '); select it or correct the option (case counts)') }}
    {%- endif -%}
    {%- set type = capture.query.types[name] -%}
    {%- if not modules.re.match('(timestamp|timestamp_ntz|date|tinyint|smallint|int|bigint|float|double|decimal.*|string.*|binary)$', type) -%}
        {{ exceptions.raise_compiler_error(where ~ ": found '" ~ name ~ "' of type " ~ type ~ '; expected a timestamp, date, number, string or binary, which grows; cast it in the model') }}
    {%- endif -%}
    {%- if capture.options.overlap is not none and not reverse_etl._has_distance(type) -%}
        {{ exceptions.raise_compiler_error(where ~ ": found overlap with '" ~ name ~ "' of type " ~ type ~ ', which has no distances; expected a timestamp, date or number; cast it in the model, or remove overlap') }}
    {%- endif -%}
    {%- do reverse_etl._check_overlap(capture.options.overlap, name, type, where) -%}
    {{ return(type) }}
{% endmacro %}

{# An overlap, here or of new_files, is used from the second capture on, so the first one looks at it. #}
{% macro _check_overlap(overlap, name, type, where) %}
    {%- set is_time = type in ('timestamp', 'timestamp_ntz', 'date') -%}
    {%- set part = '([0-9]+ +(year|month|week|day|hour|minute|millisecond|microsecond)s?|[0-9]+([.][0-9]+)? +seconds?)' -%}
    {%- set form = '(?i)' ~ part ~ '( +' ~ part ~ ')*' if is_time else '(?i)[0-9]+([.][0-9]+)?(e[0-9]+)?' -%}
    {%- if overlap and not modules.re.fullmatch(form, overlap | string) -%}
        {{ exceptions.raise_compiler_error(where ~ ": found overlap '" ~ overlap ~ "' with '" ~ name ~ "' of type " ~ type ~ '; expected ' ~ ("an interval, such as '1 hour'" if is_time else 'a number') ~ '; correct it') }}
    {%- endif -%}
{% endmacro %}

{% macro _has_distance(type) %}{{ return(not type.startswith('string') and type != 'binary') }}{% endmacro %}


{#
  A position as text: the greatest value of the candidates, but for those that lay in the future (after `_now`) when they were read: these would hide the rows
  between. NULL where there is none: a position never goes beyond what was read. A timestamp is kept in microseconds, whatever the session's time zone.
#}
{% macro _position_text(expression, type) -%}
    {%- set newest = 'max(' ~ expression ~ ')' -%}
    {%- if type in ('timestamp', 'timestamp_ntz', 'date') -%}{%- set newest = newest ~ ' filter (where cast(' ~ expression ~ ' as timestamp) <= _now)' -%}
    {%- elif type in ('float', 'double') -%}{%- set newest = newest ~ ' filter (where ' ~ expression ~ " < double('Infinity'))" -%}
    {%- endif -%}
    {%- if type == 'timestamp' -%} cast(unix_micros({{ newest }}) as string)
    {%- elif type == 'binary' -%} hex({{ newest }})
    {%- else -%} cast({{ newest }} as string)
    {%- endif -%}
{%- endmacro %}

{# And back as a literal, less the overlap; of a date always whole days. A local time is set back by an hour at most, and then grows from there. #}
{% macro _position_literal(position, type, overlap) -%}
    {%- if type == 'date' and overlap -%} cast(cast('{{ position }}' as timestamp) - interval {{ reverse_etl._string(overlap) }} as date)
    {%- else -%}
        {%- if type == 'timestamp' -%} timestamp_micros({{ position | int }}) {%- elif type == 'binary' -%} X'{{ position }}' {%- else -%} cast({{ reverse_etl._string(position) }} as {{ type }}) {%- endif -%}
        {%- if type == 'timestamp_ntz' %} - interval '1 hour'{% endif %}
        {%- if overlap %} - {{ 'interval ' ~ reverse_etl._string(overlap) if type.startswith('timestamp') else overlap }}{% endif -%}
    {%- endif -%}
{%- endmacro %}


{# What the user should know of a capture that was no usual one; `on_drift: fail` is said after the commit, which holds the right rows. #}
{% macro _report(result, settings) %}
    {%- do result.update({'message': result.message ~ result.note}) -%}
    {%- if result.note -%}{%- do log(model.name ~ ':' ~ result.note, info=true) -%}{%- endif -%}
    {%- if result.drift -%}
        {%- set text = 'changelog ' ~ model.name ~ ': found ' ~ result.drift ~ ' changes that capture.strategy ' ~ settings.capture.strategy
            ~ ' had not proposed; expected none; they are captured. Next: see why the source did not tell them, or reconcile more often' -%}
        {%- if settings.capture.on_drift == 'fail' -%}{{ exceptions.raise_compiler_error(text) }}{%- else -%}{{ exceptions.warn(text) }}{%- endif -%}
    {%- endif -%}
{% endmacro %}
