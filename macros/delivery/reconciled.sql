{#
  What an object at a destination holds (relation `found`: the fields, and _unreadable) against what the sync delivered of the image at `head`.
  One row for each key that differs: _key, _difference (missing, different, duplicate: several rows have it, extra; foreign: rows without a key, which no sync delivers), _bucket, _after_hash,
  _changed, _found_hash, _unreadable; of an extra key _after_hash is NULL and _changed 0.
    nan_is_null  whether NaN and Infinity are NULL at the destination (those within lists and structs are not looked at)
    undelivered  relation with the _key of rows that are known to be undelivered, which are left out; or none
  The others as in first_load.
#}
{% macro reconciled(relation, key, columns, base, head, fields, where, sync_id, spec_id, mode, found, undelivered=none, nan_is_null=false) -%}
with expected as (
    select _key, _bucket, _after_hash, _changed, {{ reverse_etl._hash_of_fields(fields, nan_is_null=true) if nan_is_null else '_after_hash' }} as _sent_hash
    from ({{ reverse_etl.first_load(relation, key, columns, base, head, fields, where, sync_id, spec_id, mode) }})
),
all_rows as (
    select {{ reverse_etl._key_json(key) }} as _key, _found_hash, _unreadable,
        {% for c in key %}{{ reverse_etl._quote(c) }} is null{{ ' or ' if not loop.last }}{% endfor %} as _has_no_key
    from (
        select {% for f in fields if f.column in key %}{{ reverse_etl._quote(f.field) }} as {{ reverse_etl._quote(f.column) }}, {% endfor -%}
            _unreadable, {{ reverse_etl._hash_of_fields(fields) }} as _found_hash
        from {{ found }}
    )
),
-- One row for each key. Of several rows that differ no value can be compared.
read_rows as (
    select _key, count(*) as _rows, bool_or(_has_no_key) as _has_no_key, max(_found_hash) as _found_hash,
        bool_or(_unreadable) or min(_found_hash) <> max(_found_hash) as _unreadable
    from all_rows
    group by _key
),
compared as (
    select coalesce(e._key, r._key) as _key,
        case when r._key is null then 'missing' when r._has_no_key then 'foreign' when e._key is null then 'extra' when r._rows > 1 then 'duplicate' else 'different' end as _difference,
        coalesce(e._bucket, cast(pmod(xxhash64(r._key), 65536) as int)) as _bucket, e._after_hash, coalesce(e._changed, 0) as _changed, r._found_hash, r._unreadable
    from expected e
    full outer join read_rows r on e._key = r._key
    where e._key is null or r._key is null or r._unreadable or e._sent_hash <> r._found_hash or r._rows > 1
)
select * from compared {% if undelivered %}left anti join {{ undelivered }} using (_key){% endif %}
{%- endmacro %}


{#
  Rows of `compared` (those of `reconciled`), told apart: an extra key is one that the sync delivered, or may have (`held`: SQL of that macro, or none where
  nothing is known); any other is `unknown`: foreign or leftover. Foreign is what another sync of the object delivers.
    shared_by     filters of those other syncs
    image         SQL of the rows at the head, with `_key`; or none where there are no others
    elsewhere     other syncs deliver rows to the object from other changelogs

  Where there are others, that a row is as it was delivered does not tell whose it is: another sync may have delivered the same values.
#}
{% macro told_apart(compared, held, unknown, shared_by, image, elsewhere=false) -%}
select c._key,
    case when c._difference <> 'extra' then c._difference
        {%- if image %} when coalesce(o._is_shared, false) then 'foreign'{% endif %}
        {%- if held %} when h._held{% if not (shared_by or elsewhere) %} or (not c._unreadable and array_contains(h._values, c._found_hash)){% endif %} then 'extra'{% endif %}
        else '{{ unknown }}' end as _difference,
    c._bucket, c._after_hash, {{ 'coalesce(h._changed, c._changed) as _changed' if held else 'c._changed' }}
from {{ compared }} c
{%- if held %}
left join ({{ held }}) h on h._key = c._key
{%- endif %}
{%- if image %}
left join (select _key, {{ reverse_etl._is_shared(shared_by) }} as _is_shared from ({{ image }})) o on o._key = c._key
{%- endif %}
{%- endmacro %}


{# Whether another sync of the object delivers a row. #}
{% macro _is_shared(shared_by) -%}
    ({% for where in shared_by %}coalesce({{ where or 'true' }}, false){{ ' or ' if not loop.last }}{% endfor %})
{%- endmacro %}
