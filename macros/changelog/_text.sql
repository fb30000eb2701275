{# Text macros that dbt and the Python runner both render: no adapter, no `return`, no introspection. #}

{% macro _quote(name) %}`{{ name | replace('`', '``') }}`{% endmacro %}

{% macro _columns(names, alias=none) %}
    {%- for name in names %}{{ alias ~ '.' if alias }}{{ reverse_etl._quote(name) }}{{ ', ' if not loop.last }}{% endfor -%}
{% endmacro %}

{# Spark puts variables, those of the environment too, in the place of `${...}` anywhere in SQL. #}
{% macro _string(value) %}'{{ value | string | replace('\\', '\\\\') | replace("'", "\\'") | replace('${', '$\\u007b') }}'{% endmacro %}

{# A timestamp keeps its microseconds and a struct its NULL fields: Spark's defaults drop both. In UTC, whatever the session's time zone is. #}
{% macro _json(expression) -%}
    to_json({{ expression }}, {{ reverse_etl._json_options() }})
{%- endmacro %}

{#- A session may take what is in double quotes for a name, and a backslash in a text for itself. #}
{% macro _json_options() -%}
    {%- set format = "concat('yyyy-MM-dd', char(39), 'T', char(39), 'HH:mm:ss.SSSSSS" -%}
    map('ignoreNullFields', 'false', 'timeZone', 'UTC', 'timestampFormat', {{ format }}XXX'), 'timestampNTZFormat', {{ format }}'))
{%- endmacro %}

{# The form of a column that xxhash64 tells apart: it refuses maps and does not see where a nested array ends. #}
{% macro _hashable(expression, type) %}
    {%- if type.startswith('map<') -%}{{ reverse_etl._json('array_sort(map_entries(' ~ expression ~ '))') }}
    {%- elif type.startswith('array<') or type.startswith('struct<') -%}{{ reverse_etl._json(expression) }}
    {%- else -%}{{ expression }}
    {%- endif -%}
{% endmacro %}

{#
  Hash of named values. xxhash64 skips NULLs, so each value that is not NULL is preceded by its name: a value that moves between two
  columns changes the hash, and a new column that is NULL does not. Sorted by name: the order of columns is no change.
  columns: list of {name, expression, type}
#}
{% macro _hash(columns) -%}
    xxhash64(
    {%- for column in columns | sort(attribute='name') %}
        if({{ column.expression }} is null, cast(null as string), {{ reverse_etl._string(column.name | lower) }}), {{ reverse_etl._hashable(column.expression, column.type) }}
        {{- ', ' if not loop.last }}
    {%- endfor %})
{%- endmacro %}

{# A key as one string: a JSON object in the order of unique_key. #}
{% macro _key_json(keys, alias=none) -%}
    {{ reverse_etl._json('struct(' ~ reverse_etl._columns(keys, alias) ~ ')') }}
{%- endmacro %}

{#
  The rows that make up the image at `head`, or the newest one where it is none: the newest full image (the inserts of snapshot 1, or a checkpoint) and the
  changes after it. Ranges are literals: with a sub-query Delta reads every file.
#}
{% macro _image_rows(base, head, prefix='') -%}
    {%- set range = prefix ~ '_snapshot_id >= ' ~ base ~ (' and ' ~ prefix ~ '_snapshot_id <= ' ~ head if head is not none else '') -%}
    {{ range }}
    and case when {{ prefix }}_change = 'pruned' then {{ reverse_etl._refuse_pruned(range, prefix) }}
        else {{ prefix }}_snapshot_id = {{ base }} and {{ prefix }}_change = '{{ 'insert' if base | int == 1 else 'checkpoint' }}'
            or {{ prefix }}_snapshot_id > {{ base }} and {{ prefix }}_change in ('insert', 'update_postimage', 'delete') end
{%- endmacro %}

{#
  False, or an error where `condition` holds for the header of a snapshot that prune removed. It stands in the CASE that picks rows by _change:
  as a condition beside it, Delta and Parquet would skip the files and row groups that hold nothing else.
#}
{% macro _refuse_pruned(condition, prefix='') -%}
    if({{ condition }}, raise_error(concat('reverse_etl: snapshot ', {{ prefix }}_snapshot_id, ' was pruned; expected one that is kept. Next: take one from reverse_etl.snapshots(...)')), false)
{%- endmacro %}

{#
  The image at `head`, with the given columns: one window, whose partitioning a join on the key reuses. Where the newest full image is the
  head itself, each key stands there once, and no window is needed. `newest`: for a capture alone, whose commit fails if `head` is no longer the newest:
  without it in the text Spark keeps the code that it compiled. `only`: candidates; of their keys alone.
#}
{% macro _image(relation, key, columns, base, head, newest=false, only=none) -%}
    {%- set image_rows = reverse_etl._image_rows(base, none if newest else head) -%}
    {%- set rows = reverse_etl._rows_of(relation, image_rows, key, only) if only else relation ~ ' where ' ~ image_rows -%}
    {%- if base == head -%}
    select {{ reverse_etl._columns(columns) }}, _row_hash, _snapshot_id from {{ rows }}
    {%- else -%}
    select {{ reverse_etl._columns(columns) }}, _row_hash, _snapshot_id
    from (
        select {{ reverse_etl._columns(columns) }}, _row_hash, _snapshot_id, _change,
            lead(_snapshot_id) over (partition by {{ reverse_etl._columns(key) }} order by _snapshot_id) as _next
        from {{ rows }}
    )
    where _next is null and _change <> 'delete'
    {%- endif -%}
{%- endmacro %}

{#
  Behind `from`: the rows of candidates, {relation: their keys; ranges: condition on the key where they lie, or none}. The header of a snapshot that was pruned
  lies in no range: only a capture may ask so.
#}
{% macro _rows_of(relation, condition, key, candidates) -%}
    {#- `where true and`, for Spark takes `where (true)` for an alias of the relation with a column. -#}
    (select * from {{ relation }} where true and ({{ condition }}){{ ' and ' ~ candidates.ranges if candidates.ranges }}) r left semi join {{ candidates.relation }} c on {{ reverse_etl._same_key(key, 'r', 'c') }}
{%- endmacro %}

{% macro _same_key(key, left, right) -%}
    {% for name in key %}{{ left }}.{{ reverse_etl._quote(name) }} = {{ right }}.{{ reverse_etl._quote(name) }}{{ ' and ' if not loop.last }}{% endfor %}
{%- endmacro %}


{#
  The headers of some snapshots, and the marks: rows without a snapshot, each of which names the ledger that holds the positions of a sync (`label`: its id,
  `capture_uuid`: the ledger's word for it, `base`: the highest counts).
#}
{% macro headers_and_marks(relation, snapshot_ids) -%}
select _snapshot_id, to_json(_header) from {{ relation }}
where (_snapshot_id in ({{ snapshot_ids | join(', ') }}) and _change = 'snapshot') or (_snapshot_id is null and _change = 'ledger')
{%- endmacro %}


{% macro mark(said, header_type) -%}
select 'ledger' as _change, cast(null as bigint) as _snapshot_id, current_timestamp() as _captured_at, from_json({{ reverse_etl._string(said) }}, '{{ header_type }}') as _header
{%- endmacro %}
