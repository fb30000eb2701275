{# A key that a user wrote as JSON, as the changelog has it: its string and its bucket; NULLs where a value does not fit its column. #}
{% macro key_as_stored(key, types, given) -%}
select if({% for name in key %}{{ reverse_etl._quote(name) }} is null{{ ' or ' if not loop.last }}{% endfor %}, null, _key) as _key,
    cast(pmod(xxhash64(_key), 65536) as int) as _bucket
from (
    select *, {{ reverse_etl._key_json(key) }} as _key
    from (select _given.* from (select from_json({{ reverse_etl._string(given) }}, {{ reverse_etl._key_schema(key, types) }}) as _given))
)
{%- endmacro %}


{# The columns of a key as a literal. #}
{% macro _key_schema(key, types) -%}
    {%- set schema -%}
        {%- for name in key %}{{ reverse_etl._quote(name) }} {{ types[name] }}{{ ', ' if not loop.last }}{% endfor -%}
    {%- endset -%}
    {{ reverse_etl._string(schema) }}
{%- endmacro %}


{# What `_key_json` wrote, as a struct. `types`: {column: type} #}
{% macro _key_of_json(expression, key, types) -%}
    from_json({{ expression }}, {{ reverse_etl._key_schema(key, types) }}, {{ reverse_etl._json_options() }})
{%- endmacro %}


{# Every change row of one key, oldest first: `_row` is the row as JSON. Reads the whole changelog. #}
{% macro key_history(relation, key, columns, stored, most) -%}
select _snapshot_id, _captured_at, _change, _row_hash, {{ reverse_etl._json('struct(' ~ reverse_etl._columns(columns) ~ ')') }} as _row
from {{ relation }}
where _change in ('insert', 'update_preimage', 'update_postimage', 'delete') and {{ reverse_etl._key_json(key) }} = {{ reverse_etl._string(stored) }}
order by _snapshot_id desc, _change desc
limit {{ most }}
{%- endmacro %}


{# What the runs of some syncs acknowledged of one key, oldest first; `outcome` and `reason` where they left it undelivered. #}
{% macro key_deliveries(ledger, sync_ids, changelog, stored, bucket) -%}
{%- set range = 'array<struct<lo:bigint,hi:bigint,snapshot:bigint>>' -%}
{%- set body = 'changelog string, status string, positions ' ~ range ~ ', lo bigint, hi bigint, snapshot bigint, undelivered array<struct<key:string,outcome:string,reason:string>>, delivered ' ~ range -%}
with facts as (
    select sync_id, fence, seq, recorded_at, fact, from_json(body, '{{ body }}') as told
    from {{ ledger }}
    where sync_id in ({% for one in sync_ids %}{{ reverse_etl._string(one) }}{{ ', ' if not loop.last }}{% endfor %}) and fact in ('run_started', 'wave_acknowledged', 'claims_settled', 'run_finished')
),
runs as (
    select sync_id as run_of, fence as run, max(told.status) = 'adopt' as adopted
    from facts where fact in ('run_started', 'run_finished')
    group by sync_id, fence having max(told.changelog) = {{ reverse_etl._string(changelog) }}
),
counted as (
    select * from facts inner join runs on run_of = sync_id and run = fence
),
reached as (
    select sync_id, fence, seq, recorded_at, told.lo, told.hi, told.snapshot,
        {%- for part in ['outcome', 'reason'] %}
        filter(told.undelivered, one -> one.key = {{ reverse_etl._string(stored) }})[0].{{ part }} as {{ part }}{{ ',' if not loop.last }}
        {%- endfor %}
    from counted where fact = 'wave_acknowledged'
    union all
    select sync_id, fence, seq, recorded_at, settled.lo, settled.hi, settled.snapshot, cast(null as string), cast(null as string)
    from counted lateral view explode(if(fact = 'run_started', told.positions, told.delivered)) as settled
    where fact = 'claims_settled' or fact = 'run_started' and adopted
)
select sync_id, fence, recorded_at, snapshot, outcome, reason
from reached where lo <= {{ bucket }} and hi > {{ bucket }}
order by recorded_at, fence, seq
{%- endmacro %}
