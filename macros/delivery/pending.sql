{#
  pending(sync): per key the before-image through the stored spec at its position, against the after-image through the current spec at the head.
  One scan of the changes after `low`, one aggregation by key; positions, claims and snapshots are literals.

    relation, key         the changelog and its key columns
    low, head             snapshots: changes with low < id <= head are read (0: the whole history)
    base                  where a whole image is needed: the newest full image at or before every position; the image rows from it on are read. Or none
    fields                current spec: list of {column, field, type}
    where                 current spec: filter, or none
    segments              positions: list of {hi, snapshot, spec}, ascending, covering all buckets; spec is a place in specs
    specs                 of the positions: list of {fields, where}
    claims                open claims: list of {ranges: list of (lo, hi), snapshot, everything, ordered, spec: {fields, where}}
    asked                 of the claims that were asked for, newest first: list of {by, lo, hi}; `by` is an id, without which ids of changes would repeat
    begun_by              the same for all other rows: the ledger's mark, after another one was lost, whose changelog may have had the same snapshots; or none
    undelivered           {relation, snapshots, unknown}: relation with _key, _before_hash, _maybe, _doubt, _changed, _asked_by; snapshots of their last change;
                          whether some are of keys that the changelog does not know, {column: type} of the key then; or none
    kept                  relation with the _key of rows that were delivered while deletes were not sent and now are; or none. Then no other row is deleted
    shared_by             filters of other syncs of the object: what they deliver is not deleted
    mirrored_by           filters of mirrors of the object: one may have deleted a row that was in no filter since the position, so it is sent though it is as it was
    buckets               list of (lo, hi): where keys may be pending; or none: everywhere
    mode, sync_id, spec_id
    extra                 of _captured_at and _before, what the sink asked for
    places                numbers by which Spark puts each stripe of buckets into one partition: `layout.places`

  Gives one row per planned key: _key, _bucket, _operation, _event_id, _before_hash, _after_hash, _maybe, _doubt, _changed, _asked_by, `extra`, then the fields.
  The rules are those of tests/support/delivery/reference.py `decide`.
#}
{% macro pending(relation, key, low, head, base, fields, where, segments, specs, claims, asked, undelivered, kept, mode, sync_id, spec_id, places, extra=[], buckets=none, shared_by=[], mirrored_by=[], begun_by=none) -%}
with read_rows as (
    select *, {{ reverse_etl._key_json(key) }} as _key
    from {{ relation }}
    where {% if base -%} {{ reverse_etl._image_rows(base, head) }}
        {%- else -%} {{ reverse_etl._pending_range(low, head) }} {%- endif %}
    {%- if undelivered and undelivered.snapshots %}
    union all
    select changed.* from (
        select *, {{ reverse_etl._key_json(key) }} as _key
        from {{ relation }}
        where _snapshot_id in ({{ undelivered.snapshots | join(', ') }}) and _snapshot_id <= {{ low }}
            and case when _change = 'pruned' then {{ reverse_etl._refuse_pruned('_snapshot_id in (' ~ undelivered.snapshots | join(', ') ~ ')') }}
                else _change in ('insert', 'update_postimage', 'delete', 'checkpoint') end
    ) changed
    left semi join {{ undelivered.relation }} u on u._key = changed._key
    {%- endif %}
),
bucketed as (
    select *, cast(pmod(xxhash64(_key), 65536) as int) as _bucket,
        _snapshot_id * 2 + if(_change = 'update_preimage', 0, 1) as _order
    from read_rows
),
projected as (
    select {{ reverse_etl._columns(key) }}, _key, _bucket, _snapshot_id, _change, _order,
        {{ reverse_etl._projection(fields, where) }} as _now,
        {{ reverse_etl._case_segment(segments, 'snapshot') }} as _position,
        {{ reverse_etl._then(segments, specs) }} as _then,
        {%- for claim in claims %}
        {{ reverse_etl._projection(claim.spec.fields, claim.spec.where) }} as _claimed_{{ loop.index }},
        {%- endfor %}
        {{ '_captured_at,' if '_captured_at' in extra }}
        {{ reverse_etl._is_shared(shared_by) ~ ' as _is_shared,' if shared_by }}
        {%- for where in mirrored_by %}
        coalesce({{ where or 'true' }}, false) as _mirrored_{{ loop.index }},
        {%- endfor %}
        {{ reverse_etl._payload(fields) }} as _payload, {{ reverse_etl._place('_bucket', places) }} as _place
    from bucketed{{ ' where ' ~ reverse_etl._in_buckets('_bucket', buckets) if buckets is not none }}
    distribute by _place
),
images as (
    select {{ reverse_etl._columns(key) }}, any_value(_key) as _key, any_value(_bucket) as _bucket, max(_snapshot_id) as _changed,
        max_by(if(_change = 'delete', cast(null as bigint), _now), _order) as _after_hash,
        max_by(_payload, _order) as _payload,
        {%- for claim in claims %}
        {{ reverse_etl._image_at('_claimed_' ~ loop.index, claim.snapshot) }} as _claimed_{{ loop.index }},
        {%- endfor %}
        {{ 'max_by(_captured_at, _order) as _captured_at,' if '_captured_at' in extra }}
        {% if '_before' in extra %}if(any_value(_position) = 0, null, {{ reverse_etl._image_at('_payload', '_position') }}) as _then_payload,{% endif %}
        {{ "max_by(_change <> 'delete' and _is_shared, _order) as _is_shared," if shared_by }}
        {{ reverse_etl._left(mirrored_by, mode) ~ ' as _left,' if mirrored_by }}
        if(any_value(_position) = 0, cast(null as bigint), {{ reverse_etl._image_at('_then', '_position') }}) as _then_hash
    from projected
    group by _place, {{ reverse_etl._columns(key) }}
),
before as (
    select images.*,
        {{ 'if(_left, null, ' if mirrored_by }}{{ 'if(u._key is null, _then_hash, u._before_hash)' if undelivered else '_then_hash' }}{{ ')' if mirrored_by }} as _before_hash,
        {{ 'coalesce(u._doubt, false)' if undelivered else 'false' }} as _old_doubt,
        {{ 'coalesce(u._maybe, false)' if undelivered else 'false' }} as _old_maybe,
        {{ 'u._asked_by' if undelivered else 'cast(null as string)' }} as _old_asked_by,
        {{ 'k._key is not null' if kept else 'false' }} as _kept
    from images {% if undelivered %}left join {{ undelivered.relation }} u on u._key = images._key{% endif %}
    {% if kept %}left join {{ kept }} k on k._key = images._key{% endif %}
),
doubted as (
    select *,
        coalesce({% for one in asked %}if({{ reverse_etl._in_buckets('_bucket', [(one.lo, one.hi)]) }}, {{ reverse_etl._string(one.by) }}, null), {% endfor %}_old_asked_by{{ ', ' ~ reverse_etl._string(begun_by) if begun_by }}) as _asked_by,
        _old_doubt or (_kept and _after_hash is null)
        {%- for claim in claims %} or {{ reverse_etl._in_doubt(claim, claim.number) }}{% endfor %} as _doubt,
        _old_maybe or _kept
        {#- What was asked for is no request that may have arrived. #}
        {%- for claim in claims if not claim.ordered %} or ({{ reverse_etl._in_doubt(claim, claim.number) }} and _claimed_{{ claim.number }} is not null){% endfor %} as _maybe
    from before
),
planned as (
    select *, case when _after_hash is null then 'delete'
        {#- The rows of a resync, which may be gone, and those that it could not deliver; one that is there stays as it is. #}
        {%- if mode == 'insert_only' %}
        when _old_doubt{% for claim in claims if claim.everything and claim.ordered %} or {{ reverse_etl._in_doubt(claim, claim.number) }}{% endfor %} then 'insert'
        {%- endif %}
        when _before_hash is null {{ 'and false' if mode == 'update_only' }} then 'insert' else 'update' end as _operation
    from doubted
    where (_before_hash is distinct from _after_hash or _doubt)
        and (_after_hash is not null or _maybe{{ ' or _before_hash is not null' if not kept }})
        {{- ' and (_after_hash is not null or not _is_shared)' if shared_by }}
)
select _key, _bucket, _operation,
    sha2(concat_ws(':', {{ reverse_etl._string(sync_id) }}, _key, _changed, {{ reverse_etl._string(spec_id) }}, _asked_by), 256) as _event_id,
    _before_hash, _after_hash, _maybe, _doubt, _changed, _asked_by,
    {{ '_captured_at,' if '_captured_at' in extra }}
    {{ 'if(_before_hash = _then_hash, _then_payload, null) as _before,' if '_before' in extra }}
    {%- for f in fields %}
    {% if f.column in key %}{{ reverse_etl._quote(f.column) }}{% else %}if(_operation = 'delete', null, _payload.{{ reverse_etl._quote(f.field) }}){% endif %} as {{ reverse_etl._quote(f.field) }}{{ ',' if not loop.last }}
    {%- endfor %}
from planned
where {{ reverse_etl._sent_in(mode) }}
{%- if undelivered and undelivered.unknown %}
union all
{{ reverse_etl._pending_unknown(key, fields, undelivered, sync_id, spec_id, extra) }}
{%- endif %}
{%- endmacro %}


{# The deletes of rows whose keys the changelog does not know: what stands of a key is its JSON. #}
{% macro _pending_unknown(key, fields, undelivered, sync_id, spec_id, extra) -%}
select _key, _bucket, 'delete', sha2(concat_ws(':', {{ reverse_etl._string(sync_id) }}, _key, 0, {{ reverse_etl._string(spec_id) }}, _asked_by), 256),
    cast(null as bigint), cast(null as bigint), true, true, 0L, _asked_by,
    {{ 'cast(null as timestamp),' if '_captured_at' in extra }}
    {% if '_before' in extra %}cast(null as struct<{% for f in fields %}{{ reverse_etl._quote(f.field) }}:{{ f.type }}{{ ', ' if not loop.last }}{% endfor %}>),{% endif %}
    {%- for f in fields %}
    {% if f.column in key %}if({{ reverse_etl._key_json(key) }} = _key, {{ reverse_etl._quote(f.column) }}, raise_error('reverse_etl: a key does not outlive its form as JSON; delete the row at the destination')){% else %}cast(null as {{ f.type }}){% endif %}{{ ',' if not loop.last }}
    {%- endfor %}
from (select _key, _bucket, _asked_by, inline(array({{ reverse_etl._key_of_json('_key', key, undelivered.unknown) }})) from {{ undelivered.relation }} where _changed = 0) u
left anti join images using (_key)
{%- endmacro %}


{# The changes after `low`, none of them pruned: an answer without them would lose rows in silence. #}
{% macro _pending_range(low, head) -%}
    {%- set range = '_snapshot_id > ' ~ low ~ ' and _snapshot_id <= ' ~ head -%}
    {{ range }} and case when _change = 'pruned' then {{ reverse_etl._refuse_pruned(range) }} else _change in ('insert', 'update_preimage', 'update_postimage', 'delete') end
{%- endmacro %}


{# Hash of what the destination sees of a row through a spec; NULL where the filter hides it. #}
{% macro _projection(fields, where) -%}
    {%- set hash = reverse_etl._hash_of_fields(fields, 'column') -%}
    {%- if where -%}if(coalesce({{ where }}, false), {{ hash }}, cast(null as bigint)){%- else -%}{{ hash }}{%- endif -%}
{%- endmacro %}


{# Of rows that name their values as the changelog does (`column`), or as the destination does (`field`). A column that is lost has no name. #}
{% macro _hash_of_fields(fields, named_by='field', nan_is_null=false) -%}
    {%- set named = [] -%}
    {%- for f in fields -%}
        {%- set value = reverse_etl._quote(f[named_by]) if f[named_by] else 'cast(null as ' ~ f.type ~ ')' -%}
        {%- if nan_is_null and f.type in ('float', 'double') -%}{%- set value = 'if(isnan(' ~ value ~ ') or abs(' ~ value ~ ") = double('Infinity'), null, " ~ value ~ ')' -%}{%- endif -%}
        {%- do named.append({'name': f.field, 'expression': value, 'type': f.type}) -%}
    {%- endfor -%}
    {{ reverse_etl._hash(named) }}
{%- endmacro %}


{# The image of a key at a snapshot: its last row up to it, else what its first change says stood before. #}
{% macro _image_at(projection, snapshot) -%}
    if(count_if(_snapshot_id <= {{ snapshot }} and _change <> 'update_preimage') > 0,
        max_by(if(_change = 'delete', null, {{ projection }}), _order) filter (where _snapshot_id <= {{ snapshot }} and _change <> 'update_preimage'),
        min_by(if(_change = 'insert', null, {{ projection }}), _order))
{%- endmacro %}


{#
  Whether a row changed since the position and was, at some snapshot since, in neither the filter of the sync nor that of a mirror. From one that only updates a
  mirror keeps nothing, and it makes the row again without the fields of that sync: then whether the row came back to a mirror since the position.
#}
{% macro _left(mirrored_by, mode) -%}
{%- set since = "_snapshot_id > _position and _change <> 'update_preimage'" -%}
{%- if mode == 'update_only' -%}
    count_if({{ since }}) > 0 and ({% for _ in mirrored_by %}{% set mirrored = '_mirrored_' ~ loop.index %}(max_by(_change <> 'delete' and {{ mirrored }}, _order)
        and (not coalesce({{ reverse_etl._image_at(mirrored, '_position') }}, false)
            or count_if({{ since }} and (_change = 'delete' or not {{ mirrored }})) > 0)){{ ' or ' if not loop.last }}{% endfor %})
{%- else -%}
    count_if({{ since }} and (_change = 'delete' or _now is null
        and ({% for _ in mirrored_by %}not _mirrored_{{ loop.index }}{{ ' or ' if not loop.last }}{% endfor %}))) > 0
{%- endif -%}
{%- endmacro %}


{# A row as the destination names its values. #}
{% macro _payload(fields) -%}
    struct({% for f in fields %}{{ reverse_etl._quote(f.column) }} as {{ reverse_etl._quote(f.field) }}{{ ', ' if not loop.last }}{% endfor %})
{%- endmacro %}


{% macro _case_segment(segments, what) -%}
    case{% for s in segments %} when _bucket < {{ s.hi }} then {{ s[what] }}L{% endfor %} end
{%- endmacro %}


{# The hash through the spec of the position; positions are many after a crash, specs are few. #}
{% macro _then(segments, specs) -%}
    {%- if specs | length == 1 -%}{{ reverse_etl._projection(specs[0].fields, specs[0].where) }}
    {%- else -%}
    case {{ reverse_etl._case_segment(segments, 'spec') }}
    {%- for spec in specs %}
        when {{ loop.index0 }} then {{ reverse_etl._projection(spec.fields, spec.where) }}
    {%- endfor %}
    end
    {%- endif -%}
{%- endmacro %}


{#
  Of each bucket a number whose hash puts it into a partition. Every 256 buckets are cut into as many stripes as there are numbers: any part of the buckets is
  spread evenly, and yet a partition has whole buckets, many of them neighbours. `delivery/streams.py` says why.
#}
{% macro _place(bucket, places) -%}
    element_at(array({{ places | join(', ') }}), cast(shiftright(({{ bucket }} & 255) * {{ places | length }}, 8) as int) + 1)
{%- endmacro %}


{% macro _in_doubt(claim, index) -%}
    ({{ reverse_etl._in_buckets('_bucket', claim.ranges) }}{% if not claim.everything %} and _claimed_{{ index }} is distinct from _before_hash{% endif %})
{%- endmacro %}


{% macro _in_buckets(bucket, ranges) -%}
    ({% for lo, hi in ranges %}{{ bucket }} >= {{ lo }} and {{ bucket }} < {{ hi }}{{ ' or ' if not loop.last }}{% else %}false{% endfor %})
{%- endmacro %}


{% macro _sent_in(mode) -%}
    {%- if mode in ('mirror', 'changelog') -%} true
    {%- elif mode == 'insert_only' -%} _operation = 'insert'
    {%- else -%} _operation <> 'delete'
    {%- endif -%}
{%- endmacro %}


{#
  First load, of all buckets or of some: nothing of ours is at the destination, so every visible row of the head image is an insert. Without places the rows
  lie as in their files, often all in one.
#}
{% macro first_load(relation, key, columns, base, head, fields, where, sync_id, spec_id, mode, places=none, extra=[], buckets=none, begun_by=none) -%}
{%- set asked_by = reverse_etl._string(begun_by) if begun_by else 'cast(null as string)' -%}
select _key, cast(pmod(xxhash64(_key), 65536) as int) as _bucket, '{{ 'update' if mode == 'update_only' else 'insert' }}' as _operation,
    sha2(concat_ws(':', {{ reverse_etl._string(sync_id) }}, _key, _snapshot_id, {{ reverse_etl._string(spec_id) }}, {{ asked_by }}), 256) as _event_id,
    cast(null as bigint) as _before_hash, _after_hash, false as _maybe, false as _doubt, _snapshot_id as _changed, {{ asked_by }} as _asked_by,
    {{ '_captured_at,' if '_captured_at' in extra }}
    {% if '_before' in extra %}if(true, null, {{ reverse_etl._payload(fields) }}) as _before,{% endif %}
    {%- for f in fields %}
    {{ reverse_etl._quote(f.column) }} as {{ reverse_etl._quote(f.field) }}{{ ',' if not loop.last }}
    {%- endfor %}
from (
    select *, {{ reverse_etl._key_json(key) }} as _key, {{ reverse_etl._projection(fields, where) }} as _after_hash
    from ({{ reverse_etl._image(relation, key, columns + (['_captured_at'] if '_captured_at' in extra else []), base, head) }})
)
where _after_hash is not null{{ ' and ' ~ reverse_etl._in_buckets('pmod(xxhash64(_key), 65536)', buckets) if buckets is not none }}
{{ 'distribute by ' ~ reverse_etl._place('_bucket', places) if places }}
{%- endmacro %}
