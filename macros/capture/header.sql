{# The header row of a snapshot: its type, how it is read, and what the next one says. #}

{%- macro _header_fields() -%}
    {{ return({
        'changelog_uuid': 'string', 'capture_uuid': 'string', 'kind': 'string', 'label': 'string', 'open_label': 'string', 'reopened': 'string', 'savepoint': 'string', 'frozen': 'boolean',
        'invocation_id': 'string', 'target_name': 'string', 'package_version': 'string',
        'base': 'bigint', 'live_rows': 'bigint', 'since_base': 'bigint', 'inserts': 'bigint', 'updates': 'bigint', 'deletes': 'bigint',
        'changed': 'bigint', 'since_reconcile': 'bigint', 'drift': 'bigint', 'positions': 'map<string,string>',
        'quarantined': 'array<struct<key:string,reason:string,row_count:bigint>>',
        'key_columns': 'array<string>', 'columns': 'array<struct<name:string,type:string>>',
        'undone': 'array<struct<first:bigint,last:bigint>>',
    }) }}
{%- endmacro -%}

{%- macro _header_type() -%}
    struct<{% for name, type in reverse_etl._header_fields().items() %}{{ name }}:{{ type }}{{ ',' if not loop.last }}{% endfor %}>
{%- endmacro %}


{# A changelog of a version before has a header with fewer fields; they stand in the order in which they were added. #}
{% macro _add_header_fields(target, present) %}
    {%- set missing, type = [], present | selectattr('name', 'equalto', '_header') | map(attribute='type') | first -%}
    {%- for name, field in reverse_etl._header_fields().items() if ',' ~ name ~ ':' not in type.replace('struct<', ',') -%}{%- do missing.append('_header.' ~ name ~ ' ' ~ field) -%}{%- endfor -%}
    {%- if missing -%}{%- do run_query('alter table ' ~ target ~ ' add columns (' ~ missing | join(', ') ~ ')') -%}{%- endif -%}
{% endmacro %}


{# The newest header as a dict, or none before the first snapshot; `session`: that of this query. #}
{% macro _head(target) %}
    {%- set newest = run_query('select max(_snapshot_id) from ' ~ target).rows[0][0] -%}
    {%- if newest is none -%}{{ return(none) }}{%- endif -%}
    {%- set head = reverse_etl._header(target, newest | int) -%}
    {#- What it added would be lost in the next header, and older macros would not know that they must not read it. -#}
    {%- if head is not none and reverse_etl._release(head.package_version) > reverse_etl._release(reverse_etl.version()) -%}
        {{ exceptions.raise_compiler_error(target ~ ': found a snapshot of the dbt package ' ~ head.package_version ~ '; expected one that this package knows, which is of version ' ~ reverse_etl.version() ~ ". Next: pip install 'dbt-reverse-etl==" ~ head.package_version ~ "', then dbt-reverse-etl init, and dbt deps") }}
    {%- endif -%}
    {{ return(head) }}
{% endmacro %}

{# [major, minor] of a version. #}
{% macro _release(version) %}{{ return(((version or '0') ~ '.0').split('.')[:2] | map('int') | list) }}{% endmacro %}


{# The newest snapshot that changed a row; syncs know it, too. #}
{% macro _changed(head) %}{{ return(head.changed or head.snapshot_id) }}{% endmacro %}


{% macro _header(target, snapshot_id) %}
    {%- set rows = run_query(
        "select to_json(struct(_snapshot_id as snapshot_id, _header.*), map('ignoreNullFields', 'true')), " ~ reverse_etl._session_probe() ~ ' from ' ~ target ~ " where _snapshot_id = " ~ snapshot_id ~ " and _change = 'snapshot'"
    ).rows -%}
    {%- if not rows | length -%}{{ return(none) }}{%- endif -%}
    {%- do reverse_etl._check_session(target, rows[0][1], rows[0][2]) -%}
    {%- set header = {} -%}
    {#- This JSON leaves out what is NULL. -#}
    {%- for name in reverse_etl._header_fields() -%}{%- do header.update({name: none}) -%}{%- endfor -%}
    {%- do header.update({'quarantined': [], 'positions': {}, 'undone': []}) -%}
    {%- do header.update(fromjson(rows[0][0])) -%}
    {%- do header.update({'session': rows[0][3]}) -%}
    {{ return(header) }}
{% endmacro %}


{#
  As columns of a query: what shows the settings under which our SQL would mean something else, and, as a text, those under which the SQL of a model would:
  under ANSI a text plus 1 is a whole number, the legacy formatter has no microseconds, and with case a lambda may not use another's name.
#}
{% macro _session_probe() -%}
    typeof(cast(null as timestamp)), length('\u0041'), concat(current_timezone(), if(typeof('1' + 1) = 'bigint', ', ANSI', ''),
        if(date_format(timestamp '2000-01-01 00:00:00.123456', 'SSSSSS') = '123456', '', ', timeParserPolicy LEGACY'),
        if(transform(array(1), a -> transform(array(2), A -> a)[0])[0] = 2, '', ', caseSensitive'))
{%- endmacro %}

{# Before a first capture reads or makes anything; what its feed has read already goes. Returns the session's other settings, as text. #}
{% macro _check_first_session(target) %}
    {%- set session = run_query('select ' ~ reverse_etl._session_probe()).rows[0] -%}
    {%- do reverse_etl._check_session(target, session[0], session[1], reverse_etl._feed_inputs('kafka') + reverse_etl._feed_inputs('files')) -%}
    {{ return(session[2]) }}
{% endmacro %}

{# The setting under which a table keeps no microseconds, and a hash or a key is another one than that of what it keeps; empty: another value. No expression shows it. #}
{% macro _cut_times() %}
    {%- set name = 'spark.sql.parquet.outputTimestampType' -%}
    {#- In quotes: dbt may append a comment to each statement. -#}
    {%- set written = run_query('set `' ~ name ~ '`').rows[0][1] if target.type == 'spark' else '' -%}
    {{ return(name ~ ': TIMESTAMP_MILLIS' if written | upper == 'TIMESTAMP_MILLIS' else '') }}
{% endmacro %}


{% macro _check_session(target, time, length, made=[]) %}
    {%- set other = 'spark.sql.timestampType: TIMESTAMP_NTZ' if time != 'timestamp' else 'spark.sql.parser.escapedStringLiterals: true' if length | int != 1 else reverse_etl._cut_times() -%}
    {%- if other -%}
        {%- for relation in made -%}{%- do adapter.drop_relation(relation) -%}{%- endfor -%}
        {{ exceptions.raise_compiler_error(
            'changelog ' ~ target ~ ': found ' ~ other ~ " in the session, under which its times or texts would be other ones; expected Spark's default; nothing was written. Next: remove it where it is set: server_side_parameters of the profile, spark-defaults.conf or a hook"
            ~ ('; columns keep that type by cast(... as timestamp_ntz) in the model' if other.endswith('NTZ') else '')
        ) }}
    {%- endif -%}
{% endmacro %}


{#
  What a snapshot after `head` says. `facts` are those that its kind decides: kind, and any of label, open_label, reopened (labels, as JSON), savepoint, frozen,
  undone (snapshots that count for no label), positions, quarantined, since_reconcile, drift; the others are as in `head`. `checkpoint`: true: a full image belongs to it, whatever it costs; none: never.
  `changed` is the newest snapshot whose rows differ from those before it: syncs need not look at the headers after it.
#}
{% macro _next_header(head, counts, columns, capture_uuid, facts, checkpoint=false) %}
    {%- set first = {
        'snapshot_id': 0, 'live_rows': 0, 'since_base': 0, 'base': 1, 'changelog_uuid': capture_uuid, 'frozen': false, 'open_label': none, 'changed': 1,
        'since_reconcile': 0, 'positions': {}, 'quarantined': [],
    } -%}
    {%- set header = {} -%}
    {%- do header.update(head or first) -%}
    {%- set changes = counts.inserts + counts.updates + counts.deletes -%}
    {%- do header.update({
        'snapshot_id': header.snapshot_id + 1, 'capture_uuid': capture_uuid, 'invocation_id': invocation_id, 'target_name': target.name,
        'package_version': reverse_etl.version(), 'live_rows': header.live_rows + counts.inserts - counts.deletes,
        'since_base': header.since_base + changes if head is not none else 0,
        'inserts': counts.inserts, 'updates': counts.updates, 'deletes': counts.deletes,
        'label': none, 'savepoint': none, 'drift': none, 'key_columns': columns.key, 'columns': columns.model,
    }) -%}
    {%- do header.update(facts) -%}
    {%- if head is not none and checkpoint is not none and (checkpoint or header.since_base * 4 > header.live_rows) -%}
        {%- do header.update({'base': header.snapshot_id, 'since_base': 0}) -%}
    {%- endif -%}
    {#- A column that is NULL everywhere changes no row, and a sync that sends it asks for it all the same. -#}
    {%- if changes or columns.added or header.base == header.snapshot_id -%}{%- do header.update({'changed': header.snapshot_id}) -%}{%- endif -%}
    {{ return(header) }}
{% endmacro %}


{% macro _header_literal(header) -%}
    {%- set fields = {} -%}
    {%- for name in reverse_etl._header_fields() -%}{%- do fields.update({name: header.get(name)}) -%}{%- endfor -%}
    from_json({{ reverse_etl._string(tojson(fields)) }}, '{{ reverse_etl._header_type() }}')
{%- endmacro %}

{% macro _no_header() %}cast(null as {{ reverse_etl._header_type() }}) as _header{% endmacro %}
