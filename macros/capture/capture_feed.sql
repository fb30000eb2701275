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
    {%- set measures = reverse_etl._feed_measures() or {reverse_etl._feed_position(capture): reverse_etl._position_text(sequence, reverse_etl._type_of(capture, 'sequence'))} -%}
    {%- set candidates %}
        with events as ({{ reverse_etl._feed_events(capture) }}),
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
            ~ reverse_etl._feed_operations(capture).values() | sum(start=[]) | join(', ') ~ '; add it under upsert, delete or ignore'},
    }) }}
{% endmacro %}


{#
  The events that are not known yet, and maybe some that are: their columns and _operation. With a label also _reached, the greatest one of their key up to
  them; only those up to `capture.until`, where that is given.
#}
{% macro _feed_events(capture) %}
    {%- set sequence = reverse_etl._quote(capture.options.sequence) -%}
    {%- set since = (capture.since or {}).get(reverse_etl._feed_position(capture)) if not reverse_etl._feed_measures() else none -%}
    {%- set events %}
            select {{ reverse_etl._columns(capture.columns.names) }},
                case lower({{ reverse_etl._quote(capture.options.operation) }})
                {%- for operation, values in reverse_etl._feed_operations(capture).items() %}{% for value in values %} when {{ reverse_etl._string(value | lower) }} then '{{ operation }}'{% endfor %}{% endfor %} else 'unknown' end as _operation
            from {{ capture.query.name }}
            {%- if since is not none %}
            where {{ sequence }} >= {{ reverse_etl._position_literal(since, reverse_etl._type_of(capture, 'sequence'), capture.options.overlap) }}
            {%- endif %}
    {%- endset -%}
    {%- if not capture.label -%}{{ return(events) }}{%- endif -%}
    {%- set reached %}
            select *, max(if(_operation = 'upsert', cast({{ capture.label.by }} as string), null)) over (partition by {{ reverse_etl._columns(capture.columns.key) }} order by {{ sequence }}) as _reached
            from ({{ events }})
    {%- endset -%}
    {{ return(reached if capture.until is none else 'select * from (' ~ reached ~ ") where _reached <= " ~ reverse_etl._string(capture.until) ~ ' or _reached is null') }}
{% endmacro %}


{# The labels that events of one key leave for a later one, ascending, and the time of the newest event in microseconds: [(label, time)] #}
{% macro _feed_labels_left(capture) %}
    {%- set at = 'cast(' ~ capture.label.at ~ ' as timestamp)' if capture.label.drift else 'cast(null as timestamp)' -%}
    {{ return(run_query(
        'with events as (' ~ reverse_etl._feed_events(capture) ~ ') select _reached, (select unix_micros(max(' ~ at ~ ')) from events) from (select _reached, max(_reached) over (partition by '
        ~ reverse_etl._columns(capture.columns.key) ~ ") as _last from events) where _reached < _last and not (select bool_or(_operation = 'unknown') from events) group by _reached order by _reached"
    ).rows) }}
{% endmacro %}


{% macro _feed_position(capture) %}{{ return('feed/' ~ capture.options.sequence) }}{% endmacro %}


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
