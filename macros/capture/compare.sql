{#
  The diff. All ways give the same stage, change-sized: `_stage` (insert, update, delete, null_key, duplicate_key; `total` for the number of
  model rows), the columns of the new row (for a delete the key is what counts), its hash, and the snapshot where the old image stands. With
  `query.old_images` the old images stand there, too (update_preimage, delete_image).
#}

{#
  Default: a full outer join of (key, hash) against the stored hash.
  A key that stands twice could hide behind an unchanged row. Counting copies in a window costs more than the whole diff, so the rows are
  only counted, in a second reader of the same exchange: the total must be the rows that stayed plus the rows that came (see _stage_counts).
  The row number is there because Spark never runs a query twice that is not deterministic: it keeps the exchange for both readers, as
  long as that is the last step and every column is read; otherwise it adds two exchanges of its own.
  Which keys are at fault is asked only when it is not. Where only candidates are compared, they are few. Quarantine needs to know them at once, so there they are counted one by one.
#}
{% macro compare_hash(target, head, columns, query, settings) %}
    {%- set counted = settings.on_bad_key == 'fail' and not query.candidates %}
    with model_rows as (
        {%- if counted %}
        select /*+ repartition({{ reverse_etl._columns(columns.key) }}) */ * from (
            select {{ reverse_etl._columns(columns.names) }}, monotonically_increasing_id() as _row_number from {{ query.rows }}
        )
        {%- else %}
        select {{ reverse_etl._columns(columns.names) }} from {{ query.rows }}
        {%- endif %}
    ),
    new_rows as (
        {{ reverse_etl._new_rows('model_rows', columns, copies=not counted) }}
    ),
    old_rows as (
        {{ reverse_etl._old_rows(target, head, columns, columns.names if query.old_images else columns.key, query.candidates) if not columns.widened else reverse_etl._hashed_anew(target, head, columns, query.candidates) }}
    )
    {%- set classified = reverse_etl._classify(columns, 'n._row_hash <> o._row_hash', query.old_images) %}
    {{ reverse_etl._with_old_images(columns, classified) if query.old_images else classified }}
    {%- if counted %}
    union all
    select 'total', {{ reverse_etl._null_columns(columns.model) }}, cast(null as bigint), count_if(_row_number >= 0) from model_rows
    {%- endif %}
{% endmacro %}


{#
  Literal EXCEPT both ways, for audits. EXCEPT reads the model twice, so the query was stored as a table (see _model_query). A value in a column that either
  the model or its head has not is a difference, too, as it is for the hash; where the hash is the same, the row was
  captured with that column, before a kill between two labels.
#}
{% macro compare_except(target, head, columns, query, settings) %}
    {%- set names = reverse_etl._columns(columns.names) %}
    {%- set dropped = columns.dropped | map(attribute='name') | list -%}
    {%- set one_sided = dropped + reverse_etl._names_at(head, columns.names, present=false) %}
    with new_rows as (
        {{ reverse_etl._new_rows(query.rows, columns, copies=true) }}
    ),
    old_rows as (
        {{ reverse_etl._old_rows(target, head, columns, columns.names + dropped, query.candidates) }}
    ),
    different as (
        select {{ reverse_etl._columns(columns.key) }} from (select {{ names }} from new_rows except select {{ names }} from old_rows)
        union
        select {{ reverse_etl._columns(columns.key) }} from (select {{ names }} from old_rows except select {{ names }} from new_rows)
        {%- if one_sided %}
        union
        select {{ reverse_etl._columns(columns.key) }} from old_rows o
        left semi join new_rows n on {{ reverse_etl._same_key(columns.key, 'o', 'n') }} and o._row_hash <> n._row_hash
        where not {{ reverse_etl._all_null(one_sided) }}
        {%- endif %}
    ),
    classified as (
        {{ reverse_etl._classify(columns, 'true') }}
    )
    select * from classified _reverse_etl_row
    where _stage in ('null_key', 'duplicate_key')
        or exists (select 1 from different where {{ reverse_etl._same_key(columns.key, 'different', '_reverse_etl_row') }})
{% endmacro %}


{% macro _new_rows(model, columns, copies) %}
    select {{ reverse_etl._columns(columns.names) }}, {{ reverse_etl._model_hash(columns.model) }} as _row_hash,
        {{ 'count(*) over (partition by ' ~ reverse_etl._columns(columns.key) ~ ')' if copies else '1' }} as _copies
    from {{ model }}
{% endmacro %}


{# The head image; before the first snapshot, no row. #}
{% macro _old_rows(target, head, columns, names, only) %}
    {%- if head is none -%}
        select {{ reverse_etl._columns(names) }}, cast(null as bigint) as _row_hash, cast(null as bigint) as _snapshot_id from {{ target }} where false
    {%- else -%}
        {{ reverse_etl._image(target, columns.key, names, head.base, head.snapshot_id, newest=true, only=only) }}
    {%- endif -%}
{% endmacro %}


{# A value has another hash in a wider type; the full image of this snapshot keeps the new ones (see _commit_groups). #}
{% macro _hashed_anew(target, head, columns, only) %}
    select {{ reverse_etl._columns(columns.key) }}, {{ reverse_etl._model_hash(columns.model) }} as _row_hash, _snapshot_id
    from ({{ reverse_etl._old_rows(target, head, columns, columns.names, only) }})
{% endmacro %}


{# Of each update and delete two rows: the change, and what stood before it. #}
{% macro _with_old_images(columns, classified) %}
    {%- set change -%}
        struct(_stage, {{ reverse_etl._columns(columns.names) }}, _row_hash, _old_snapshot_id)
    {%- endset -%}
    select inline(case
        when _stage in ('update', 'delete') then array(
            {{ change }},
            struct(if(_stage = 'update', 'update_preimage', 'delete_image') as _stage, {{ reverse_etl._columns(columns.names, '_old') }}, _old._row_hash, _old_snapshot_id)
        )
        else array({{ change }})
    end)
    from ({{ classified }})
{% endmacro %}


{% macro _classify(columns, changed, old_images=false) %}
    select
        case
            when n._row_hash is not null and {{ reverse_etl._any_null(columns.key, 'n') }} then 'null_key'
            when n._copies > 1 then 'duplicate_key'
            when o._snapshot_id is null then 'insert'
            when n._row_hash is null then 'delete'
            else 'update'
        end as _stage,
        {% for name in columns.names -%}
            {% if name in columns.key %}coalesce(n.{{ reverse_etl._quote(name) }}, o.{{ reverse_etl._quote(name) }}) as {{ reverse_etl._quote(name) }}{% else %}n.{{ reverse_etl._quote(name) }}{% endif %},
        {% endfor -%}
        n._row_hash, o._snapshot_id as _old_snapshot_id
        {%- if old_images %}, struct({{ reverse_etl._columns(columns.names, 'o') }}, o._row_hash) as _old {%- endif %}
    from new_rows n
    full outer join old_rows o on {{ reverse_etl._same_key(columns.key, 'n', 'o') }}
    where n._row_hash is null or n._copies > 1 or o._snapshot_id is null or {{ changed }}
{% endmacro %}


{% macro _any_null(names, alias=none) -%}
    ({% for name in names %}{{ alias ~ '.' if alias }}{{ reverse_etl._quote(name) }} is null{{ ' or ' if not loop.last }}{% endfor %})
{%- endmacro %}


{# Those of `names` that are columns of the head, or those that are none: added, come back, or renamed in the table, too. #}
{% macro _names_at(head, names, present=true) %}
    {%- set known, found = head.columns | map(attribute='name') | map('lower') | list if head is not none else [], [] -%}
    {%- for name in names if (name | lower in known) == present -%}{%- do found.append(name) -%}{%- endfor -%}
    {{ return(found) }}
{% endmacro %}


{% macro _all_null(names) -%}
    ({% for name in names %}{{ reverse_etl._quote(name) }} is null{{ ' and ' if not loop.last }}{% endfor %})
{%- endmacro %}


{% macro _model_hash(columns) %}
    {%- set named = [] -%}
    {%- for column in columns -%}
        {%- do named.append({'name': column.name, 'expression': reverse_etl._quote(column.name), 'type': column.type}) -%}
    {%- endfor -%}
    {{ reverse_etl._hash(named) }}
{% endmacro %}
