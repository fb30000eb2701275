{#
  The diff. Both ways give the same stage, change-sized: `_stage` (insert, update, delete, null_key, duplicate_key), the columns of the
  new row (for a delete only the key), its hash, and the snapshot where the old image stands.
#}

{# Default: a full outer join of (key, hash) against the stored hash; the guard against duplicates shares its exchange. #}
{% macro compare_hash(target, head, columns, query) %}
    with new_rows as (
        {{ reverse_etl._new_rows(query.name, columns) }}
    ),
    old_rows as (
        {{ reverse_etl._old_rows(target, head, columns, columns.key) }}
    )
    {{ reverse_etl._classify(columns, 'n._row_hash <> o._row_hash') }}
{% endmacro %}


{# Literal EXCEPT both ways, for audits. EXCEPT reads the model twice, so the query was stored as a table (see _model_query). #}
{% macro compare_except(target, head, columns, query) %}
    {%- set names = reverse_etl._columns(columns.names) %}
    with new_rows as (
        {{ reverse_etl._new_rows(query.name, columns) }}
    ),
    old_rows as (
        {{ reverse_etl._old_rows(target, head, columns, columns.names) }}
    ),
    different as (
        select {{ reverse_etl._columns(columns.key) }} from (select {{ names }} from new_rows except select {{ names }} from old_rows)
        union
        select {{ reverse_etl._columns(columns.key) }} from (select {{ names }} from old_rows except select {{ names }} from new_rows)
    ),
    classified as (
        {{ reverse_etl._classify(columns, 'true') }}
    )
    select * from classified
    where _stage in ('null_key', 'duplicate_key')
        or exists (select 1 from different where {{ reverse_etl._same_key(columns.key, 'different', 'classified') }})
{% endmacro %}


{% macro _new_rows(model, columns) %}
    select {{ reverse_etl._columns(columns.names) }}, {{ reverse_etl._model_hash(columns.model) }} as _row_hash,
        count(*) over (partition by {{ reverse_etl._columns(columns.key) }}) as _copies
    from {{ model }}
{% endmacro %}


{# The head image; before the first snapshot, no row. #}
{% macro _old_rows(target, head, columns, names) %}
    {%- if head is none -%}
        select {{ reverse_etl._columns(names) }}, cast(null as bigint) as _row_hash, cast(null as bigint) as _snapshot_id from {{ target }} where false
    {%- else -%}
        {{ reverse_etl._image(target, columns.key, names, head.base, head.snapshot_id) }}
    {%- endif -%}
{% endmacro %}


{% macro _classify(columns, changed) %}
    select
        case
            when n._copies is not null and ({% for name in columns.key %}n.{{ reverse_etl._quote(name) }} is null{{ ' or ' if not loop.last }}{% endfor %}) then 'null_key'
            when n._copies > 1 then 'duplicate_key'
            when o._snapshot_id is null then 'insert'
            when n._copies is null then 'delete'
            else 'update'
        end as _stage,
        {% for name in columns.names -%}
            {% if name in columns.key %}coalesce(n.{{ reverse_etl._quote(name) }}, o.{{ reverse_etl._quote(name) }}) as {{ reverse_etl._quote(name) }}{% else %}n.{{ reverse_etl._quote(name) }}{% endif %},
        {% endfor -%}
        n._row_hash, o._snapshot_id as _old_snapshot_id
    from new_rows n
    full outer join old_rows o on {{ reverse_etl._same_key(columns.key, 'n', 'o') }}
    where n._copies is null or n._copies > 1 or o._snapshot_id is null or {{ changed }}
{% endmacro %}


{% macro _model_hash(columns) %}
    {%- set named = [] -%}
    {%- for column in columns -%}
        {%- do named.append({'name': column.name, 'expression': reverse_etl._quote(column.name), 'type': column.type}) -%}
    {%- endfor -%}
    {{ reverse_etl._hash(named) }}
{% endmacro %}
