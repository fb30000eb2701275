{#
  What the destination of a sync holds, and held: one row per key and half-open interval [delivered_from, delivered_to) in time of acknowledgement.
  Each shows the model's columns as of `snapshot_id`, the snapshot whose values the destination held; the destination saw of them what the sync maps.
  A row that was left undelivered keeps the older values. Where nobody knows, `in_doubt` is true, and the values are those that were acknowledged
  last, or, where nothing was, those that may have arrived: after a crash or a lost lease from the claim on, after a lost answer from the end of its
  wave on, both until the next acknowledgement. What is under way in a run that goes well is no doubt.
  It speaks of the sync's newest destination and object, and of the changelog as it is now. Both and the definitions of the sync are looked up when the
  model is built: a sync that was pushed for the first time after that shows nothing yet.
    sync  name of the exposure
#}
{% macro delivered(relation, sync, key=none, columns=none) -%}
{%- set added = ['snapshot_id', 'captured_at', 'delivered_from', 'delivered_to', 'is_held', 'in_doubt'] -%}
{%- do reverse_etl._refuse_taken('delivered', relation, columns, added, 'leave it out with columns=[...], and if you need it, rename it in the model') -%}
{%- set ledger = ref('reverse_etl', 'reverse_etl_ledger') -%}
{%- set changelog = "(select any_value(_header.changelog_uuid) from " ~ reverse_etl._whole(relation) ~ " where _change = 'snapshot')" -%}
{%- set known = reverse_etl._delivered_known(ledger, sync, relation, changelog) if execute else {'sync_id': '', 'specs': [], 'known_from': 0} -%}
{%- set keys = ([key] if key is string else key) if key else reverse_etl._key_of_node(relation) if execute else ['key'] -%}
(
with {{ reverse_etl._acknowledged(ledger, known.sync_id, changelog, known.known_from) }},
{#- One row per version, as in scd2, deletes included; a checkpoint is one only where pruning left nothing older. -#}
versions as (
    select * except (_reverse_etl_before, _reverse_etl_repeats), lead(_snapshot_id) over (partition by {{ reverse_etl._columns(keys) }} order by _snapshot_id) as _reverse_etl_next
    from (
        select *, lag(_snapshot_id) over (partition by {{ reverse_etl._columns(keys) }} order by _snapshot_id, _reverse_etl_repeats) as _reverse_etl_before
        from {{ reverse_etl._view_versions(relation) }}
    )
    where not _reverse_etl_repeats or _reverse_etl_before is null
),
{#- `hashes`: what the destination sees of it through each spec; NULL where it was deleted, or the filter hides it. -#}
slim as (
    select row_key, cast(pmod(xxhash64(row_key), 65536) as int) as bucket, from_snapshot, to_snapshot, hashes
    from (
        select {{ reverse_etl._key_json(keys) }} as row_key, _snapshot_id as from_snapshot, _reverse_etl_next as to_snapshot,
            if(_change = 'delete', cast(map() as map<string,bigint>), {{ reverse_etl._delivered_hashes(known.specs) }}) as hashes
        from versions
    )
),
{#- What each acknowledgement says of a key: the version that it brought, hidden by the filter or deleted (hash NULL) or not. -#}
told as (
    select v.row_key, v.from_snapshot, a.fence, a.seq, a.at, {{ reverse_etl._delivered_mode(known.specs, 'a.spec') }} as mode, v.hashes[a.spec] as hash
    from slim v
    inner join acks a on v.bucket >= a.lo and v.bucket < a.hi and a.snapshot >= v.from_snapshot and (v.to_snapshot is null or a.snapshot < v.to_snapshot)
    left anti join left_out u on u.fence = a.fence and u.seq = a.seq and u.entry.key = v.row_key
),
{#- Only `mirror` and `changelog` delete, and `insert_only` leaves what is there. -#}
changed as (
    select * from (
        select *, last_value(hash) over (partition by row_key order by fence, seq rows between unbounded preceding and 1 preceding) as before
        from told where hash is not null or mode in ('mirror', 'changelog')
    )
    where not (mode = 'insert_only' and before is not null)
),
{#- Rows of a claim that its own run did not end may have arrived, where their values differ from what was acknowledged. -#}
doubtful as (
    select k.row_key, c.id, c.snapshot, c.spec, c.everything, c.fence, c.at, min(o.at) as until, min_by(o.fence, o.at) as ended_by
    from claims c
    inner join (select distinct row_key, bucket from slim) k on k.bucket >= c.lo and k.bucket < c.hi
    left join endings o on {{ reverse_etl._ends('o', 'c', 'k.bucket') }}
    group by k.row_key, c.id, c.snapshot, c.spec, c.everything, c.fence, c.at
),
claimed as (
    select d.row_key, d.id, d.at, d.until, d.everything, v.from_snapshot, v.hashes[d.spec] as hash, {{ reverse_etl._delivered_mode(known.specs, 'd.spec') }} as mode
    from doubtful d
    inner join slim v on v.row_key = d.row_key and d.snapshot >= v.from_snapshot and (v.to_snapshot is null or d.snapshot < v.to_snapshot)
    where not d.ended_by <=> d.fence
),
doubts as (
    select c.row_key, c.at, c.until, c.from_snapshot
    from claimed c
    left join changed h on h.row_key = c.row_key and h.at <= c.at
    where c.hash is not null or c.mode in ('mirror', 'changelog')
    group by c.row_key, c.id, c.at, c.until, c.from_snapshot, c.hash, c.everything
    having c.everything or not (max(struct(h.fence, h.seq, h.hash)).hash <=> c.hash)
    union all
    select u.entry.key, u.at, min(t.at), any_value(v.from_snapshot)
    from left_out u
    inner join slim v on v.row_key = u.entry.key and u.snapshot >= v.from_snapshot and (v.to_snapshot is null or u.snapshot < v.to_snapshot)
    left join told t on t.row_key = u.entry.key and (t.fence > u.fence or t.fence = u.fence and t.seq > u.seq)
    where u.entry.doubt
    group by u.entry.key, u.fence, u.seq, u.at
),
points as (
    select row_key, at, fence * 1000000 + seq as turn, true as tells, if(hash is null, cast(null as bigint), from_snapshot) as held, 0 as doubt, cast(null as bigint) as maybe
    from changed
    union all
    select row_key, place.at, 0, false, null, place.doubt, place.maybe
    from (select row_key, explode(array(struct(at, 1 as doubt, from_snapshot as maybe), struct(until as at, -1 as doubt, cast(null as bigint) as maybe))) as place from doubts)
    where place.at is not null
),
states as (
    select row_key, at,
        last_value(if(tells, struct(held), null), true) over so_far as told,
        sum(doubt) over so_far > 0 as in_doubt,
        last_value(maybe, true) over so_far as maybe,
        lead(at) over (partition by row_key order by at, turn) as next_at
    from points
    window so_far as (partition by row_key order by at, turn rows between unbounded preceding and current row)
),
{#- Of several at one time the last counts; equal neighbours are one interval. -#}
spans as (
    select *, lag(struct(snapshot_id, in_doubt)) over (partition by row_key order by at) <=> struct(snapshot_id, in_doubt) as _reverse_etl_repeated
    from (
        select row_key, at, in_doubt, coalesce(told.held, if(in_doubt, maybe, null)) as snapshot_id
        from states where next_at is null or next_at > at
    )
),
intervals as (
    select *, lead(at) over (partition by row_key order by at) as delivered_to from spans where not _reverse_etl_repeated
)
select {{ reverse_etl._view_columns(columns, ['_reverse_etl_next'], 'v') }},
    i.snapshot_id, v._captured_at as captured_at, i.at as delivered_from, i.delivered_to, i.delivered_to is null as is_held, i.in_doubt
from intervals i
inner join versions v on {{ reverse_etl._key_json(keys, 'v') }} = i.row_key and v._snapshot_id = i.snapshot_id
where v._change <> 'delete'
)
{%- endmacro %}


{# The newest identity of the sync over this changelog, its specs over this changelog, and the fence of the first run that counts. #}
{% macro _delivered_known(ledger, sync, relation, changelog) %}
    {%- set started = ledger ~ " where fact = 'run_started' and sync = " ~ reverse_etl._string(sync) ~ " and from_json(body, 'changelog string').changelog = " ~ changelog -%}
    {%- set table = load_relation(relation) -%}
    {%- set found = run_query("select max_by(sync_id, recorded_at), max_by(from_json(body, 'known_from bigint').known_from, recorded_at) from " ~ started).rows[0] if table is not none else [none, none] -%}
    {%- set specs = [] -%}
    {%- if found[0] is not none -%}
        {%- set present, head = {}, reverse_etl._head(table) -%}
        {%- for column in reverse_etl._columns_of(table) -%}{%- do present.update({column.name: column.type}) -%}{%- endfor -%}
        {%- for row in run_query(reverse_etl.specs_of(ledger, found[0], changelog, found[1] or 0)).rows -%}
            {%- set spec = fromjson(row[1]) -%}
            {%- set fields = [] -%}
            {%- for field in spec.fields -%}{%- do fields.append({'column': field[0], 'field': field[1], 'type': field[2]}) -%}{%- endfor -%}
            {%- set then = reverse_etl._spec_at({'fields': fields, 'where': spec.where}, row[2] | int, head.snapshot_id, present, head.columns) -%}
            {%- do specs.append(dict(then, id=row[0], mode=spec.mode)) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ return({'sync_id': found[0] or '', 'specs': specs, 'known_from': found[1] or 0}) }}
{% endmacro %}
