{#
  The model gives changes, not an image: one row for each, with the values after it.
    operation   column that tells what happened; it is no column of the changelog
    operations  {upsert: [...], delete: [...], ignore: [...]}: its values; default: those of Debezium, Flink, Delta and I/U/D
    sequence    column that orders the changes of a key; it stays in the changelog, so that a change that comes late or twice is known
    overlap     how far behind the newest sequence rows are read again; interval or number. Not where the model reads new files or Kafka: these
                know what is new
#}
{% macro capture_feed(capture) %}
    {%- set options = capture.options -%}
    {%- set key = capture.columns.key -%}
    {%- set sequence = reverse_etl._quote(options.sequence) -%}
    {%- set type = reverse_etl._type_of(capture, 'sequence') -%}
    {%- set operations = reverse_etl._feed_operations(capture) -%}
    {%- set name = 'feed/' ~ options.sequence -%}
    {%- set measures = reverse_etl._feed_measures() or {name: reverse_etl._position_text(sequence, type)} -%}
    {%- set since = (capture.since or {}).get(name) if name in measures else none -%}
    {%- set candidates %}
        with events as (
            select {{ reverse_etl._columns(capture.columns.names) }},
                case lower({{ reverse_etl._quote(options.operation) }})
                {%- for operation, values in operations.items() %}{% for value in values %} when {{ reverse_etl._string(value | lower) }} then '{{ operation }}'{% endfor %}{% endfor %} else 'unknown' end as _operation
            from {{ capture.query.name }}
            {%- if since is not none %}
            where {{ sequence }} >= {{ reverse_etl._position_literal(since, type, options.overlap) }}
            {%- endif %}
        ),
        newest as (
            select *, row_number() over (partition by {{ reverse_etl._columns(key) }} order by {{ sequence }} desc, _operation) as _rank from events where _operation <> 'ignore'
        ),
        known as (
            select {{ reverse_etl._columns(key) }}, _known, if(_change in ('delete', 'tombstone'), null, struct({{ reverse_etl._columns(capture.columns.names) }}, _row_hash, _snapshot_id)) as _old
            from (
                select r.*, max({{ sequence }}) over versions as _known, lead(true) over versions as _next
                from (select * from {{ capture.relation }} where _change in ('insert', 'update_postimage', 'delete', 'checkpoint', 'tombstone')) r
                left semi join events e on {{ reverse_etl._same_key(key, 'r', 'e') }}
                window versions as (partition by {{ reverse_etl._columns(key) }} order by _change <> 'tombstone', _snapshot_id, _change = 'checkpoint')
            )
            where _next is null
        )
        select n.* except (_rank), n._operation = 'delete' as _gone, coalesce(n.{{ sequence }} <= k._known, false) as _late, k._old
        from newest n left join known k on {{ reverse_etl._same_key(key, 'n', 'k') }}
        where _rank = 1
    {%- endset -%}
    {{ return({
        'candidates': candidates, 'measures': measures, 'carries_rows': true, 'carries_old': true, 'only_changes': true, 'compared': 'not _late',
        'refuse': {"bool_or(_operation = 'unknown')": 'operation: found a value that capture.operations does not list; expected one of '
            ~ operations.values() | sum(start=[]) | join(', ') ~ '; add it under upsert, delete or ignore'},
    }) }}
{% endmacro %}


{% macro _feed_operations(capture) %}
    {%- set known = {
        'upsert': ['i', 'insert', 'c', 'r', 'u', 'update', '+i', '+u', 'update_postimage', 'upsert'],
        'delete': ['d', 'delete', '-d'],
        'ignore': ['-u', 'update_preimage', 'm'],
    } -%}
    {{ return(capture.options.operations or known) }}
{% endmacro %}


{# How far the events lead that come from Kafka or files (see macros/feeds); of others the sequence tells. #}
{% macro _feed_measures() %}
    {%- set measures = {} -%}
    {%- for kind in ['kafka', 'files'] -%}
        {%- set inputs = reverse_etl._feed_inputs(kind) -%}
        {%- if inputs -%}{%- do measures.update({kind ~ '/': reverse_etl._feed_positions(kind, inputs)}) -%}{%- endif -%}
    {%- endfor -%}
    {{ return(measures) }}
{% endmacro %}
