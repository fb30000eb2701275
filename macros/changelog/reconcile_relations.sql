{#
  What differs between a relation and the one that it is expected to equal, by key: `_difference` is missing, extra or different.
  First only numbers are compared: the count and the hashes of the rows of each bucket of keys. Rows are matched only where those of their bucket
  differ: relations that are equal cost a scan of each, and no row is shuffled. Both are read twice, so name tables rather than costly queries.
    columns  to compare: names, or {name, type} each, then the database is not asked for the types; default: all of `relation`
    buckets  as a rule of thumb, many more than keys that differ
  A key that stands twice is matched copy by copy. NULL equals NULL, in a key too. Maps are equal if their entries are.
#}
{% macro reconcile_relations(relation, expected, key=none, columns=none, buckets=65536) -%}
{%- set ready = execute is not defined or execute -%}
{%- set keys = ([key] if key is string else key) if key else reverse_etl._key_of_node(relation) if ready else [] -%}
{%- set typed = columns if columns and columns[0] is mapping else reverse_etl._described_columns(relation, columns) if ready else [] -%}
(
    with reverse_etl_found as ({{ reverse_etl._bucketed(relation, keys, typed, buckets) }}),
    reverse_etl_expected as ({{ reverse_etl._bucketed(expected, keys, typed, buckets) }}),
    reverse_etl_buckets as (
        select _reverse_etl_bucket
        from (
            select _reverse_etl_bucket, _reverse_etl_hash, 1 as side from reverse_etl_found
            union all
            select _reverse_etl_bucket, _reverse_etl_hash, -1 from reverse_etl_expected
        )
        group by _reverse_etl_bucket
        {#- Sums that cannot overflow; a row that stands twice on each side leaves no trace in the XOR. #}
        having sum(side) <> 0 or bit_xor(_reverse_etl_hash) <> 0 or sum(side * shiftright(_reverse_etl_hash, 24)) <> 0
    )
    select
        {%- for name in keys %}
        if(l._reverse_etl_hash is null, r.{{ reverse_etl._quote(name) }}, l.{{ reverse_etl._quote(name) }}) as {{ reverse_etl._quote(name) }},
        {%- endfor %}
        case when l._reverse_etl_hash is null then 'missing' when r._reverse_etl_hash is null then 'extra' else 'different' end as _difference
    from ({{ reverse_etl._unequal_rows('reverse_etl_found', keys) }}) l
    full outer join ({{ reverse_etl._unequal_rows('reverse_etl_expected', keys) }}) r
        on l._reverse_etl_copy = r._reverse_etl_copy {%- for name in keys %} and l.{{ reverse_etl._quote(name) }} <=> r.{{ reverse_etl._quote(name) }}{% endfor %}
    where l._reverse_etl_hash is null or r._reverse_etl_hash is null
        {%- for column in typed %}
        or {{ reverse_etl._hashable('l.' ~ reverse_etl._quote(column.name), column.type) }} is distinct from {{ reverse_etl._hashable('r.' ~ reverse_etl._quote(column.name), column.type) }}
        {%- endfor %}
)
{%- endmacro %}


{% macro _bucketed(relation, keys, typed, buckets) -%}
    {%- set named = [] -%}
    {%- for column in typed -%}{%- do named.append({'name': column.name, 'expression': reverse_etl._quote(column.name), 'type': column.type}) -%}{%- endfor -%}
    {#- Of two keys in one bucket each may have the value of the other. #}
    {%- for name in keys if name | lower not in typed | map(attribute='name') | map('lower') -%}{%- do named.append({'name': name, 'expression': reverse_etl._quote(name), 'type': ''}) -%}{%- endfor %}
    select *, pmod(xxhash64({{ reverse_etl._columns(keys) }}), {{ buckets }}) as _reverse_etl_bucket, {{ reverse_etl._hash(named) }} as _reverse_etl_hash from {{ relation }}
{%- endmacro %}


{# The rows of the buckets that differ: these are few, so they are broadcast, and the other rows go no further than their scan. #}
{% macro _unequal_rows(relation, keys) -%}
    select /*+ broadcast(reverse_etl_buckets) */ *, row_number() over (partition by {{ reverse_etl._columns(keys) }} order by _reverse_etl_hash) as _reverse_etl_copy
    from {{ relation }} left semi join reverse_etl_buckets using (_reverse_etl_bucket)
{%- endmacro %}


{# The columns of any relation with their types, of a sub-query too: [{name, type}]. #}
{% macro _described_columns(relation, names) -%}
    {%- set found, wanted = [], [names] if names is string else names -%}
    {%- for row in run_query('describe query select * from ' ~ relation).rows if not names or row[0] in wanted -%}
        {%- do found.append({'name': row[0], 'type': row[1]}) -%}
    {%- endfor -%}
    {%- for name in (wanted or []) if name not in found | map(attribute='name') -%}
        {{ reverse_etl._view_refuse('columns', name ~ ', which is no column of ' ~ relation, 'columns of it', 'correct columns=[...]') }}
    {%- endfor -%}
    {{- return(found) -}}
{%- endmacro %}
