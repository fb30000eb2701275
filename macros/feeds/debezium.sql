{#
  Change events of Debezium's connectors for Postgres, MySQL and MariaDB in JSON, with or without the schema in the message, as rows for the strategy feed:
  the columns after each change, `operation` (c, r, u, d, m) and `sequence`, a text that grows with the source's log.
    relation     behind `from`: has the message as string or binary in `value` and, unless `message_key` is none, in `message_key`. Of any but kafka_topic and
                 new_files everything is read each time: no place in the log tells what is new, for other partitions may lag behind
    columns      {column of the source: type}. The type says how the text is read: string, boolean, whole numbers, float, double, decimal(p,s) from a number or
                 its text, date from days or ISO text, timestamp from ISO text with its offset, timestamp_millis and timestamp_micros from numbers (both give a
                 timestamp), binary from base64. A value that does not fit stops the capture
    key          its columns that identify a row
    optional     columns that older events lack: NULL there
    tombstones   delete: a message without a value deletes the row of its key; for that the relation has Kafka's `_partition` and `_offset` of each message.
                 ignore: where the topic is not compacted, the event before it has done so
#}
{% macro debezium(relation, columns, key, optional=[], tombstones='delete', value='value', message_key='key', operation='_op', sequence='_sequence') -%}
    {%- do reverse_etl._check_debezium(columns, key, optional, tombstones, [operation, sequence], message_key) -%}
    {%- set messages = reverse_etl._debezium_messages(relation, columns, key, optional, tombstones, value, message_key) -%}
    {%- if tombstones == 'delete' -%}
        {%- do reverse_etl._check_debezium_places(relation) -%}
        {%- set messages = reverse_etl._debezium_placed(messages, columns, key) -%}
    {%- endif -%}
(
    select {{ reverse_etl._columns(columns) }}, _dbz_op as {{ reverse_etl._quote(operation) }}, _dbz_sequence as {{ reverse_etl._quote(sequence) }}
    from {{ messages }}
)
{%- endmacro %}


{# One row for each message: the columns, _dbz_op and _dbz_sequence; where tombstones delete, _dbz_partition and _dbz_offset, too. #}
{% macro _debezium_messages(relation, columns, key, optional, tombstones, value, message_key) -%}
    {%- set place = ', _dbz_partition, _dbz_offset' if tombstones == 'delete' else '' -%}
(
    select
        {%- for name, type in columns.items() %}
        {{ reverse_etl._debezium_value('_dbz_' ~ loop.index, type | lower | replace(' ', ''), name) }} as {{ reverse_etl._quote(name) }},
        {%- endfor %}
        _dbz_op, _dbz_sequence{{ place }}
    from (
        select _dbz_op, {{ reverse_etl._debezium_sequence() }} as _dbz_sequence{{ place }}
            {%- for name in columns %},
            {{ reverse_etl._debezium_text(name, name in key, name in optional) }} as _dbz_{{ loop.index }}
            {%- endfor %}
        from (
            select _dbz_key{{ place }}, _dbz_event.source as _dbz_source, {{ reverse_etl._debezium_operation() }} as _dbz_op,
                case when _dbz_tombstone then _dbz_key when _dbz_event.op = 'd' then coalesce(_dbz_event.before, _dbz_key) else _dbz_event.after end as _dbz_row,
                if(_dbz_event.op = 'u', _dbz_event.before, null) as _dbz_old
            from (
                select _dbz_tombstone{{ place }}, coalesce(_dbz_value.payload, struct(_dbz_value.before, _dbz_value.after, _dbz_value.source, _dbz_value.op)) as _dbz_event,
                    if(map_contains_key(_dbz_plain_key, 'schema') and _dbz_wrapped_key.payload is not null, _dbz_wrapped_key.payload, _dbz_plain_key) as _dbz_key
                from (
                    select cast({{ reverse_etl._quote(value) }} as string) is null as _dbz_tombstone,{{ ' _partition as _dbz_partition, _offset as _dbz_offset,' if place }}
                        from_json(cast({{ reverse_etl._quote(value) }} as string), '{{ reverse_etl._debezium_envelope() }}') as _dbz_value,
                        {%- set text = 'cast(' ~ (reverse_etl._quote(message_key) if message_key else 'null') ~ ' as string)' %}
                        from_json({{ text }}, 'struct<payload:map<string,string>>') as _dbz_wrapped_key, from_json({{ text }}, 'map<string,string>') as _dbz_plain_key
                    from {{ relation }}
                )
                {%- if tombstones == 'ignore' %}
                where not _dbz_tombstone
                {%- endif %}
            )
        )
    )
)
{%- endmacro %}


{#
  A message without a place in the log comes after what stands before it in its partition: the place of the last event of its key there, and its offset. Where
  none stands there it has no place, and is left out if another message of its key follows.
#}
{% macro _debezium_placed(messages, columns, key) -%}
    {%- set of_key = 'partition by ' ~ reverse_etl._columns(key) ~ ' order by _dbz_partition, _dbz_offset' -%}
(
    select {{ reverse_etl._columns(columns) }}, _dbz_op,
        coalesce(_dbz_sequence, if(_dbz_before.partition = _dbz_partition, concat_ws('/', _dbz_before.sequence, lpad(_dbz_offset, 20, '0')), null)) as _dbz_sequence
    from (
        select *, lead(_dbz_partition) over ({{ of_key }}) as _dbz_next,
            last(if(_dbz_sequence is null, null, struct(_dbz_partition as partition, _dbz_sequence as sequence)), true)
                over ({{ of_key }} rows between unbounded preceding and 1 preceding) as _dbz_before
        from {{ messages }}
    )
    where _dbz_sequence is not null or coalesce(_dbz_before.partition = _dbz_partition, false) or coalesce(_dbz_next <> _dbz_partition, true)
)
{%- endmacro %}


{% macro _debezium_envelope() -%}
    {%- set event = 'before:map<string,string>,after:map<string,string>,source:struct<lsn:bigint,sequence:string,file:string,pos:bigint,`row`:bigint>,op:string' -%}
    struct<payload:struct<{{ event }}>,{{ event }}>
{%- endmacro %}


{% macro _debezium_operation() -%}
    case when _dbz_tombstone then 'd' when _dbz_event.op in ('c', 'r', 'u', 'd', 'm') then _dbz_event.op
        when _dbz_event.op = 't' then {{ reverse_etl._debezium_refuse(
            'op t: the table was truncated, which an event tells without its keys', 'changes of rows', 'start the changelog anew with the operation reset, after a new snapshot of the connector'
        ) }}
        else {{ reverse_etl._debezium_refuse('a message that is no change event', 'JSON with op, before, after and source', 'name the topic of one table; events of another format need a model of their own') }} end
{%- endmacro %}


{#
  Digits are padded, so that text sorts as the numbers do. A tombstone has no place of its own; nor have rows that a snapshot of the connector read without one.
  Postgres logs a change when it is made, and the connector tells it when its transaction has committed: first counts the commit before it, which all changes of
  a transaction share. A row that a snapshot reads meanwhile does not know of them, however far the log was.
#}
{% macro _debezium_sequence() -%}
    case when _dbz_op = 'm' or _dbz_source is null then null
        when _dbz_source.lsn is not null then concat_ws(
            '/', lpad(coalesce(get_json_object(_dbz_source.sequence, '$[0]'), _dbz_source.lsn), 20, '0'), lpad(if(_dbz_op = 'r', 0, _dbz_source.lsn), 20, '0')
        )
        when _dbz_source.pos is not null and _dbz_source.file rlike '[0-9]$'
            then concat_ws('/', lpad(regexp_extract(_dbz_source.file, '([0-9]+)$', 1), 20, '0'), lpad(_dbz_source.pos, 20, '0'), lpad(coalesce(_dbz_source.`row`, 0), 10, '0'))
        when _dbz_op = 'r' then null
        else {{ reverse_etl._debezium_refuse('an event without its place in the log', 'source.lsn (Postgres), or source.file and source.pos (MySQL, MariaDB)', 'other connectors need a model of their own') }} end
{%- endmacro %}


{# The text of a column in the row of an event. Of a deleted row only the key is certain; a column that a router adds to the key is in no row. #}
{% macro _debezium_text(name, in_key, is_optional) -%}
    {%- set text = 'try_element_at(_dbz_row, ' ~ reverse_etl._string(name) ~ ')' -%}
    {%- if in_key -%}
    {%- set named = reverse_etl._string(name) -%}
    {%- set text = 'coalesce(' ~ text ~ ', if(_dbz_op = \'d\' or not map_contains_key(_dbz_row, ' ~ named ~ '), try_element_at(_dbz_key, ' ~ named ~ '), null))' -%}
    case when _dbz_op = 'm' then null when {{ text }} is null
        then {{ reverse_etl._debezium_refuse('an event without the key column ' ~ name, 'it in the row, or in the key of the message', 'see the key of the table, and message.key.columns of the connector') }}
        when try_element_at(_dbz_old, {{ reverse_etl._string(name) }}) <> {{ text }}
            then {{ reverse_etl._debezium_refuse('an update that changes the key column ' ~ name ~ ', so that the row under its old key would stay', 'a delete and an insert in its place', 'name the columns of key= in message.key.columns of the connector, and leave this message out, by its _partition and _offset') }}
    {%- else -%}
    case when _dbz_op in ('m', 'd') then null
        {# The placeholder: as text, base64 or hex, in a list or a map, or as the list of its bytes. #}
        when {{ text }} in ('__debezium_unavailable_value', 'X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==')
            or lower({{ text }}) = '5f5f646562657a69756d5f756e617661696c61626c655f76616c7565'
            or (left({{ text }}, 1) in ('[', '{') and contains({{ text }}, '"__debezium_unavailable_value"'))
            or startswith(replace({{ text }}, ' ', ''), '[95,95,100,101,98,101,122,105,117,109,95,')
            then {{ reverse_etl._debezium_refuse('column ' ~ name ~ ' without its value: Postgres does not log a long value that did not change', 'the whole row', 'alter table ... replica identity full, then have the connector send the row again') }}
        {%- if not is_optional %}
        when not coalesce(map_contains_key(_dbz_row, {{ reverse_etl._string(name) }}), false)
            then {{ reverse_etl._debezium_refuse('an event without column ' ~ name, 'every column of `columns` in each event', 'correct its name, or list it in optional=[...] if events from before it was added lack it') }}
        {%- endif %}
    {%- endif %}
        else {{ text }} end
{%- endmacro %}


{# The value of a text; refused, where the text is none of the type. A plain cast would fail first in ANSI mode, and show the value. #}
{% macro _debezium_value(text, type, name) -%}
    {%- set whole = text ~ " rlike '^-?[0-9]+$'" -%}
    {%- set result = 'timestamp' if type in ('timestamp_millis', 'timestamp_micros') else type -%}
    {%- set value -%}
        {%- if type == 'string' -%} {{ text }}
        {%- elif type in ('tinyint', 'smallint', 'int', 'integer', 'bigint') -%} if({{ whole }}, try_cast({{ text }} as {{ type }}), null)
        {%- elif type.startswith('decimal') -%} if({{ text }} rlike '^-?[0-9]+([.][0-9]{0,{{ type.split(',')[1] | replace(')', '') if ',' in type else 0 }}}0*)?$', try_cast({{ text }} as {{ type }}), null)
        {%- elif type == 'date' -%} case when {{ whole }} then date_from_unix_date(try_cast({{ text }} as int)) when {{ text }} rlike '^[0-9]{4}-[0-9]{2}-[0-9]{2}Z?$' then try_cast(left({{ text }}, 10) as date) end
        {%- elif type == 'timestamp' -%} if({{ text }} rlike '^[0-9]{4}-.*(Z|[+-][0-9]{2}:?[0-9]{2})$', try_cast({{ text }} as timestamp), null)
        {%- elif type == 'timestamp_millis' -%} if({{ whole }}, timestamp_micros(try_multiply(try_cast({{ text }} as bigint), 1000)), null)
        {%- elif type == 'timestamp_micros' -%} if({{ whole }}, timestamp_micros(try_cast({{ text }} as bigint)), null)
        {%- elif type == 'binary' -%} try_to_binary({{ text }}, 'base64')
        {%- else -%} try_cast({{ text }} as {{ type }})
        {%- endif -%}
    {%- endset -%}
    {%- if type == 'string' -%} {{ value }} {%- else -%}
    case when {{ text }} is null then cast(null as {{ result }}) when {{ value }} is null
            then {{ reverse_etl._debezium_refuse('column ' ~ name ~ ' with a value that is no ' ~ type, 'an encoding of that type (see docs/capture.md)', 'choose the type that fits the connector, or string') }}
        else {{ value }} end
    {%- endif -%}
{%- endmacro %}

{% macro _debezium_refuse(found, expected, next_step) -%}
    raise_error({{ reverse_etl._string('reverse_etl.debezium: found ' ~ found ~ '; expected ' ~ expected ~ '; nothing was captured. Next: ' ~ next_step) }})
{%- endmacro %}


{# A tombstone alone does not say what it comes after. #}
{% macro _check_debezium_places(relation) %}
    {%- if execute and flags.WHICH in ('run', 'build', 'retry') and model.resource_type != 'unit_test' -%}
        {%- set present = run_query('describe query select * from ' ~ relation).columns[0].values() -%}
        {%- if '_partition' not in present or '_offset' not in present -%}
            {%- do reverse_etl._view_refuse(
                "debezium: tombstones='delete'", 'a relation with the columns ' ~ present | join(', '), "Kafka's _partition and _offset of each message among them: a tombstone does not say what it comes after",
                "pass kafka_topic(...), or '(select key, value, partition as _partition, offset as _offset from ...)', or tombstones='ignore', if the topic is not compacted"
            ) -%}
        {%- endif -%}
    {%- endif -%}
{% endmacro %}


{% macro _check_debezium(columns, key, optional, tombstones, own, message_key) %}
    {%- set types = 'string|boolean|tinyint|smallint|int|integer|bigint|float|double|decimal\\(\\d+(,\\d+)?\\)|date|timestamp|timestamp_millis|timestamp_micros|binary' -%}
    {%- if columns is not mapping or not columns or key is string or not key -%}
        {%- do reverse_etl._view_refuse('debezium', 'no columns or no key', "columns={name: type} and key=[names]", 'pass both') -%}
    {%- endif -%}
    {%- for name, type in columns.items() if not modules.re.fullmatch(types, type | lower | replace(' ', '')) -%}
        {%- do reverse_etl._view_refuse('debezium: column ' ~ name, "the type '" ~ type ~ "'", 'one of ' ~ types | replace('|', ', ') | replace('\\d+(,\\d+)?', 'p,s') | replace('\\', ''), 'read it as string, and take it apart in the model') -%}
    {%- endfor -%}
    {%- for name in (key + optional) | reject('in', columns) -%}
        {%- do reverse_etl._view_refuse('debezium: key and optional', "'" ~ name ~ "'", 'one of columns: ' ~ columns | join(', '), 'add it there, or correct it') -%}
    {%- endfor -%}
    {%- for name in own if name in columns -%}
        {%- do reverse_etl._view_refuse('debezium', "a column '" ~ name ~ "'", 'another name than those of operation and sequence', 'pass operation= or sequence=') -%}
    {%- endfor -%}
    {%- if tombstones not in ('delete', 'ignore') or tombstones == 'delete' and not message_key -%}
        {%- do reverse_etl._view_refuse('debezium', "tombstones='" ~ tombstones ~ "'" ~ ('' if message_key else ' without a message_key'), "'delete' with the key of the messages, or 'ignore'", 'pass one of them') -%}
    {%- endif -%}
{% endmacro %}
