{#
  The model gives changes, not an image: one row for each, with the values after it.
    operation   column that tells what happened; it is no column of the changelog
    operations  {upsert: [...], delete: [...], ignore: [...]}: its values; default: those of Debezium, Flink, Delta and I/U/D
    sequence    column that orders the changes of a key; it stays in the changelog, so that a change that comes late or twice is known
    overlap     how far behind the newest sequence rows are read again; interval or number. Not where the model reads new files or Kafka: these
                know what is new. A text has no distances, so with such a sequence everything is read each time
#}
{% macro capture_feed(capture) %}
    {%- set sequence = reverse_etl._quote(capture.options.sequence) -%}
    {%- do reverse_etl._check_one_cluster(reverse_etl._feed_inputs('kafka')) -%}
    {%- set measures = reverse_etl._feed_measures() -%}
    {%- if reverse_etl._feed_by_sequence(capture.query, capture.options) -%}
        {%- do measures.update({reverse_etl._feed_position(capture): reverse_etl._position_text(sequence, reverse_etl._position_type(capture, 'sequence'))}) -%}
    {%- endif -%}
    {%- set candidates %}
        select * except (_rank), _operation = 'delete' as _gone, current_timestamp() as _now
        from (
            {#- An unknown operation before all others of its key, so that none is passed over. #}
            select *, row_number() over (partition by {{ reverse_etl._columns(capture.columns.key) }} order by _operation = 'unknown' desc, {{ reverse_etl._feed_order(capture, newest_first=true) }}) as _rank
            from ({{ reverse_etl._feed_events(capture) }}) where _operation <> 'ignore'
        )
        where _rank = 1
    {%- endset -%}
    {{ return({
        'candidates': candidates, 'measures': measures, 'only_changes': true, 'compare': 'feed',
        'refuse': {"bool_or(_operation = 'unknown')": reverse_etl._unknown_operation(capture)},
    }) }}
{% endmacro %}


{#
  The diff of events, in one pass over the image: it tells what is known of a key and how its row stands. An event is late that comes after a greater
  sequence of its key, be that of a row, or of a tombstone, which remembers a delete. One without a sequence comes after what is known; where it is read again
  and again beside newer ones that are not, before it.
#}
{% macro compare_feed(target, head, columns, query, settings) %}
    {%- set key, names = reverse_etl._columns(columns.key), reverse_etl._columns(columns.names) -%}
    {%- set sequence = reverse_etl._quote(settings.capture.sequence) -%}
    {%- set base = head.base if head is not none else 1 -%}
    {%- set unplaced_is_new = '_known is null' if reverse_etl._feed_by_sequence(query, settings.capture) else 'true' -%}
    {%- set event -%} {{ names }}, _row_hash, _old._snapshot_id as _old_snapshot_id {%- endset -%}
    {%- set old_image -%} {{ reverse_etl._columns(columns.names, '_old') }}, _old._row_hash, _old._snapshot_id as _old_snapshot_id {%- endset -%}
    {#- Of a deleted row the key and the sequence stay, and nothing else of it. #}
    {%- set tombstone -%}
        struct('tombstone' as _stage, {% for name in columns.names -%}
            {{ reverse_etl._quote(name) if name in columns.key + [settings.capture.sequence] else 'if(false, ' ~ reverse_etl._quote(name) ~ ', null) as ' ~ reverse_etl._quote(name) }}, {% endfor -%}
            cast(null as bigint) as _row_hash, cast(null as bigint) as _old_snapshot_id)
    {%- endset %}
    with known as (
        select {{ key }}, _known,
            if(_change in ('delete', 'tombstone'), null, struct({{ names }}, {{ reverse_etl._model_hash(columns.model) if columns.widened else '_row_hash' }} as _row_hash, _snapshot_id)) as _old
        from (
            select r.*, max({{ sequence }}) over versions as _known, lead(true) over versions as _next
            from {{ reverse_etl._rows_of(target, '_snapshot_id >= ' ~ base ~ " and _change in ('insert', 'update_postimage', 'delete', 'checkpoint', 'tombstone')", columns.key, query.candidates) }}
            window versions as (partition by {{ key }} order by _change <> 'tombstone', _snapshot_id, _change = 'checkpoint')
        )
        where _next is null
    ),
    {#- Before the newest full image stand no rows that count, but sequences that do: of deletes, and of what a rollback took back. #}
    {%- if base > 1 %}
    known_before as (
        select {{ key }}, max({{ sequence }}) as _known_before
        from {{ reverse_etl._rows_of(target, '_snapshot_id < ' ~ base ~ " and _change in ('insert', 'update_postimage', 'checkpoint', 'tombstone')", columns.key, query.candidates) }}
        group by {{ key }}
    ),
    {%- endif %}
    events as (
        select n.*, {{ 'greatest(k._known, b._known_before)' if base > 1 else 'k._known' }} as _known, k._old
        from (select *, {{ reverse_etl._model_hash(columns.model) }} as _row_hash from {{ query.rows }}) n
        left join known k on {{ reverse_etl._same_key(columns.key, 'n', 'k') }}
        {%- if base > 1 %}
        left join known_before b on {{ reverse_etl._same_key(columns.key, 'n', 'b') }}
        {%- endif %}
    )
    {%- set dropped = reverse_etl._names_at(head, columns.dropped | map(attribute='name') | list) %}
    {%- if dropped %},
    changes as (
    {%- endif %}
    select inline(case
        when {{ reverse_etl._any_null(columns.key) }} then array(struct('null_key' as _stage, {{ event }}))
        when not _gone and _old is null then array(struct('insert' as _stage, {{ event }}))
        when not _gone then array(struct('update' as _stage, {{ event }}) {%- if query.old_images %}, struct('update_preimage' as _stage, {{ old_image }}) {%- endif %})
        when _old is null then if({{ sequence }} is null, null, array({{ tombstone }}))
        else array(struct('delete' as _stage, {{ event }}), {{ tombstone }} {%- if query.old_images %}, struct('delete_image' as _stage, {{ old_image }}) {%- endif %})
    end)
    from events
    where coalesce({{ sequence }} > _known, {{ sequence }} is not null or {{ unplaced_is_new }}) and (_gone or _old is null or _old._row_hash <> _row_hash)
    {%- if dropped %}
    )
    select * from changes
    union all
    {#- What stands in a column that the model has no more goes, with an event or without. #}
    select 'update', {{ names }}, {{ reverse_etl._model_hash(columns.model) }}, _snapshot_id
    from ({{ reverse_etl._image(target, columns.key, columns.names + dropped, head.base, head.snapshot_id, newest=true) }}) _reverse_etl_row
    where not {{ reverse_etl._all_null(dropped) }} and not exists (select 1 from changes where {{ reverse_etl._same_key(columns.key, 'changes', '_reverse_etl_row') }})
    {%- endif %}
{% endmacro %}


{# What a rollback takes back is old to the feed, also once prune has removed its rows: a tombstone keeps the greatest sequence of each key that changes. #}
{% macro _stage_known(target, stage, columns, sequence) %}
    {%- set remembered = columns.key + ([sequence] | reject('in', columns.key) | list) -%}
    {%- set forgotten = columns.model | rejectattr('name', 'in', remembered) | list + columns.dropped + [{'name': '_row_hash', 'type': 'bigint'}, {'name': '_old_snapshot_id', 'type': 'bigint'}] -%}
    {%- call statement('known') -%}
        insert into {{ stage }} by name
        select 'tombstone' as _stage, {{ reverse_etl._columns(columns.key, 'l') }}, {{ 'max(l.' ~ reverse_etl._quote(sequence) ~ ') as ' ~ reverse_etl._quote(sequence) ~ ', ' if sequence not in columns.key }}{{ reverse_etl._null_columns(forgotten) }}
        from {{ target }} l
        left semi join {{ stage }} s on {{ reverse_etl._same_key(columns.key, 'l', 's') }} and s._stage in ('insert', 'update', 'delete')
        where l._change in ('insert', 'update_postimage', 'checkpoint', 'tombstone')
        group by {{ reverse_etl._columns(columns.key, 'l') }}
    {%- endcall -%}
{% endmacro %}


{# The events that are not known yet, and maybe some that are: their columns and _operation. With a label, of the part that `capture.labels` says. #}
{% macro _feed_events(capture) %}
    {%- if capture.labels -%}{{ return('select * except (_reached, _next_label) from ' ~ capture.labels.events ~ ' where ' ~ capture.labels.part) }}{%- endif -%}
    {%- set sequence = reverse_etl._quote(capture.options.sequence) -%}
    {%- set since = (capture.since or {}).get(reverse_etl._feed_position(capture)) if reverse_etl._feed_by_sequence(capture.query, capture.options) else none -%}
    {%- set events %}
            select {{ reverse_etl._columns(capture.columns.names) }},
                case lower({{ reverse_etl._quote(capture.options.operation) }})
                {%- for operation, values in reverse_etl._feed_operations(capture).items() %}{% for value in values %} when {{ reverse_etl._string(value | lower) }} then '{{ operation }}'{% endfor %}{% endfor %} else 'unknown' end as _operation
            from {{ capture.query.name }}
            {%- if since is not none %}
            where {{ sequence }} >= {{ reverse_etl._position_literal(since, reverse_etl._position_type(capture, 'sequence'), capture.options.overlap) }} or {{ sequence }} is null
            {%- endif %}
    {%- endset -%}
    {{ return(events) }}
{% endmacro %}


{#
  The events, each with the greatest label that its key has reached (`_reached`), and with the label of the next row of its key (`_next_label`). What has no
  place among the events of its key has neither.
#}
{% macro _feed_events_by_label(capture) %}
    {%- set sequence = reverse_etl._quote(capture.options.sequence) -%}
    {%- set label = "if(_operation = 'upsert', cast(" ~ capture.label.by ~ ' as string), null)' -%}
    {%- set events = 'partition by ' ~ reverse_etl._columns(capture.columns.key) ~ ' order by ' ~ reverse_etl._feed_order(capture) -%}
    {%- set placed = sequence ~ ' is not null and not ' ~ reverse_etl._any_null(capture.columns.key) %}
    select *, if({{ placed }}, max({{ label }}) over ({{ events }} rows unbounded preceding), null) as _reached,
        if({{ placed }}, first({{ label }}, true) over ({{ events }} rows between 1 following and unbounded following), null) as _next_label
    from ({{ reverse_etl._feed_events(capture) }})
{% endmacro %}


{# The order of the events of a key. Of some with one sequence the last is always the same: a delete, or else the one with the greatest hash. #}
{% macro _feed_order(capture, newest_first=false) -%}
    {{ reverse_etl._quote(capture.options.sequence) }}{{ ' desc' if newest_first }}, _operation{{ ' desc' if not newest_first }}, {{ reverse_etl._model_hash(capture.columns.model) }}{{ ' desc' if newest_first }}
{%- endmacro %}


{# Another name than `feed/`: positions of that one may lie beyond what was read. #}
{% macro _feed_position(capture) %}{{ return('sequence/' ~ capture.options.sequence) }}{% endmacro %}

{# Whether the sequence tells what is new; otherwise the feed's source does, or everything is read each time. #}
{% macro _feed_by_sequence(query, options) %}
    {%- set sequence = options.sequence -%}
    {{ return(not reverse_etl._feed_measures() and reverse_etl._has_distance(reverse_etl._position_type({'query': query, 'options': options}, 'sequence'))) }}
{% endmacro %}


{% macro _feed_operations(capture) %}
    {%- set known = {
        'upsert': ['i', 'insert', 'c', 'r', 'u', 'update', '+i', '+u', 'update_postimage', 'upsert'],
        'delete': ['d', 'delete', '-d'],
        'ignore': ['-u', 'update_preimage', 'm'],
    } -%}
    {{ return(capture.options.operations or known) }}
{% endmacro %}


{% macro _unknown_operation(capture) -%}
    operation: found a value that capture.operations does not list; expected one of {{ reverse_etl._feed_operations(capture).values() | sum(start=[]) | join(', ') }}; add it under upsert, delete or ignore
{%- endmacro %}


{# How far the events lead that come from Kafka or files (see macros/feeds); of others the sequence tells. #}
{% macro _feed_measures() %}
    {%- set measures = {} -%}
    {%- for kind in ['kafka', 'files'] -%}
        {%- set inputs = reverse_etl._feed_inputs(kind) -%}
        {%- if inputs -%}{%- do measures.update({kind ~ '/': reverse_etl._feed_positions(kind, inputs)}) -%}{%- endif -%}
    {%- endfor -%}
    {{ return(measures) }}
{% endmacro %}
