{#
  What an object at a destination holds (relation `found`: the fields, and _unreadable) against what the sync delivered of the image at `head`.
  One row for each key that differs: _key, _difference (missing, different, extra), _bucket, _after_hash, _changed; of an extra key only the first two.
    undelivered  relation with the _key of rows that are known to be undelivered, which are left out; or none
  The others as in first_load.
#}
{% macro reconciled(relation, key, columns, base, head, fields, where, sync_id, spec_id, mode, found, undelivered=none) -%}
with expected as (
    select _key, _bucket, _after_hash, _changed from ({{ reverse_etl.first_load(relation, key, columns, base, head, fields, where, sync_id, spec_id, mode) }})
),
read_rows as (
    select {{ reverse_etl._key_json(key) }} as _key, _found_hash, _unreadable
    from (
        select {% for f in fields if f.column in key %}{{ reverse_etl._quote(f.field) }} as {{ reverse_etl._quote(f.column) }}, {% endfor -%}
            _unreadable, {{ reverse_etl._hash_of_fields(fields) }} as _found_hash
        from {{ found }}
    )
),
compared as (
    select coalesce(e._key, r._key) as _key,
        case when r._key is null then 'missing' when e._key is null then 'extra' else 'different' end as _difference,
        e._bucket, e._after_hash, e._changed
    from expected e
    full outer join read_rows r on e._key = r._key
    where e._key is null or r._key is null or r._unreadable or e._after_hash <> r._found_hash
)
select * from compared {% if undelivered %}left anti join {{ undelivered }} using (_key){% endif %}
{%- endmacro %}


{# Of keys that should not be at the destination (relation `extra` with _key): where the changelog has deleted or hidden them last; a foreign one is not among them. #}
{% macro once_delivered(relation, key, head, extra) -%}
select _key, cast(pmod(xxhash64(_key), 65536) as int) as _bucket, max(_snapshot_id) as _changed
from (
    select {{ reverse_etl._key_json(key) }} as _key, _snapshot_id
    from {{ relation }} where _snapshot_id <= {{ head }} and _change in ('insert', 'update_postimage', 'delete', 'checkpoint')
)
left semi join {{ extra }} using (_key)
group by _key
{%- endmacro %}
