{#
  Keys that the sync hides at `head` and whose rows the destination may hold because of it: by the acknowledgements and claims of the ledger, over the
  changelog's history, through the spec of that time. One row per key that was delivered, or may have been: _key, _bucket, _changed, and
    _held    the destination held it after the last thing that is known of it: no delete of ours was acknowledged since
    _values  hashes of what was delivered, as the fields of now name it: such a row came from this sync, whoever brought it back

  What `update_only` changed and `insert_only` found is not told apart from rows of others, so neither makes a row ours. Of history that was pruned nothing is known.
    specs    every spec that the sync had: list of {id, fields, where, mode}
    fields, where   of the spec of now
    only     relation with the _key to ask about; or none: all
  The others as in `_acknowledged`, `pending` and `reconciled`.
#}
{% macro held(relation, key, head, ledger, sync_id, changelog, known_from, specs, fields, where, only=none, nan_is_null=false) -%}
with {{ reverse_etl._acknowledged(ledger, sync_id, reverse_etl._string(changelog), known_from, late=true) }},
versions as (
    select _key, cast(pmod(xxhash64(_key), 65536) as int) as _bucket, _snapshot_id as from_snapshot, max(_snapshot_id) over keys as _changed,
        lead(_snapshot_id, 1, {{ 2 ** 63 - 1 }}L) over (partition by _key order by _snapshot_id, _repeats) as to_snapshot, _hashes, _value,
        max_by(_visible, struct(_snapshot_id, _repeats)) over keys as _is_visible
    from (
        select _key, _snapshot_id, _change = 'checkpoint' as _repeats,
            if(_change = 'delete', cast(map() as map<string,bigint>), {{ reverse_etl._delivered_hashes(specs) }}) as _hashes,
            {{ reverse_etl._hash_of_fields(fields, 'column', nan_is_null) }} as _value,
            _change <> 'delete' and coalesce({{ where or 'true' }}, false) as _visible
        from (
            select *, {{ reverse_etl._key_json(key) }} as _key
            from {{ relation }} where _snapshot_id <= {{ head }} and _change in ('insert', 'update_postimage', 'delete', 'checkpoint')
        ){{ ' left semi join ' ~ only ~ ' using (_key)' if only }}
    )
    window keys as (partition by _key)
),
hidden as (select * from versions where not _is_visible),
{# Acknowledgements of one kind say the same of one version, so that the last of them counts: one is passed over if the next one is of this version, too. #}
in_turn as (select *, lead(snapshot, 1, -1L) over (partition by lo, hi, spec, fact order by fence, seq) as next_snapshot from acks),
told as (
    select v._key, a.fence, a.seq, v._value, v._hashes[a.spec] is not null as is_put, {{ reverse_etl._delivered_mode(specs, 'a.spec') }} as mode
    from hidden v
    left join (select distinct entry.key from left_out) l on l.key = v._key
    inner join in_turn a on v._bucket >= a.lo and v._bucket < a.hi and a.snapshot >= v.from_snapshot and a.snapshot < v.to_snapshot
        {# The last one may have left out this key. #}
        and (l.key is not null or a.next_snapshot < v.from_snapshot or a.next_snapshot >= v.to_snapshot)
    left anti join left_out u on u.fence = a.fence and u.seq = a.seq and u.entry.key = v._key
    {# Who adopts says what is there, and deletes nothing. #}
    where a.fact <> 'run_started' or v._hashes[a.spec] is not null
),
{# Claims that did not end whole: few, of many. #}
partly_open as (
    select c.* from claims c
    left anti join endings e on e.id = c.id and e.lo <= c.lo and e.hi >= c.hi and not coalesce(exists(e.kept, one -> one.id = c.id), false)
        and (e.fence = c.fence or e.fact = 'claims_settled')
    where not c.ordered
),
{# A claim that neither its own run nor the record of the destination ended. #}
claimed as (
    select v._key, c.fence, c.seq, v._value, {{ reverse_etl._delivered_mode(specs, 'c.spec') }} as mode
    from hidden v
    inner join partly_open c on v._bucket >= c.lo and v._bucket < c.hi and c.snapshot >= v.from_snapshot and c.snapshot < v.to_snapshot
    left anti join endings e on {{ reverse_etl._ends('e', 'c', 'v._bucket') }} and (e.fence = c.fence or e.fact = 'claims_settled')
    where v._hashes[c.spec] is not null
),
steps as (
    select _key, fence, seq, is_put, _value from told where mode in ('mirror', 'changelog') or (is_put and mode = 'upsert')
    union all
    select _key, fence, seq, true, _value from claimed where mode in ('mirror', 'changelog', 'upsert')
    union all
    select entry.key, fence, seq, true, null from left_out where entry.maybe
)
select v._key, any_value(v._bucket) as _bucket, any_value(v._changed) as _changed,
    max_by(s.is_put, struct(s.fence, s.seq, s.is_put)) as _held, collect_set(if(s.is_put, s._value, null)) as _values
from (select distinct _key, _bucket, _changed from hidden) v
inner join steps s on s._key = v._key
group by v._key
having bool_or(s.is_put)
{%- endmacro %}
