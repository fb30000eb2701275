{#
  Facts with the version of a dimension that held at their time: every fact once, with NULLs where no version held.
    facts      any relation; all its columns are shown
    dimension  one row per version, with half-open intervals that do not overlap: reverse_etl.scd2(...), or a dbt snapshot, of `hard_deletes: new_record` its rows with dbt_is_deleted = 'False'
    on         the key: a column, a list of columns, or {column of the facts: column of the dimension}
    at         column of the facts: their time
    columns    of the dimension: a list, or {column: name in the result}; default: all but the key
  Facts and versions are sorted into one order by key and time, so that no fact is compared with every version of its key.
#}
{% macro point_in_time_join(facts, dimension, on, at, columns=none, valid_from='valid_from', valid_to='valid_to') -%}
{%- set keys, shown = {}, {} -%}
{%- for name in ([on] if on is string else on) -%}{%- do keys.update({name: on[name] if on is mapping else name}) -%}{%- endfor -%}
{%- for name in ([columns] if columns is string else columns or []) -%}{%- do shown.update({name: columns[name] if columns is mapping else name}) -%}{%- endfor -%}
{%- set added = shown.values() | list or [valid_from, valid_to] -%}
{%- do reverse_etl._refuse_taken('point_in_time_join', facts, none, added, 'pass columns={column of the dimension: another name}') -%}
(
    select
        _reverse_etl_fact.*,
        {%- for name in shown %}
        _reverse_etl_held.{{ reverse_etl._quote(name) }} as {{ reverse_etl._quote(shown[name]) }}{{ ',' if not loop.last }}
        {%- else %}
        _reverse_etl_held.* except ({{ reverse_etl._columns(keys.values()) }})
        {%- endfor %}
    from (
        select
            _reverse_etl_fact,
            case
                {#- Without ANSI Spark takes the times of the versions for texts, too, and sorts them so. #}
                when typeof(_reverse_etl_at) = 'string' and typeof(_reverse_etl_last.until) in ('date', 'timestamp', 'timestamp_ntz')
                    then raise_error({{ reverse_etl._string('reverse_etl.point_in_time_join: found the text ' ~ at ~ ' as the time of the facts; expected the type of ' ~ valid_from ~ '. Next: cast it in the facts') }})
                when _reverse_etl_at < _reverse_etl_last.until or (_reverse_etl_at is not null and _reverse_etl_last.until is null) then _reverse_etl_last.version
            end as _reverse_etl_held
        from (
            select *, last_value(_reverse_etl_version, true) over (
                partition by {% for name in keys %}_reverse_etl_key_{{ loop.index }}, {% endfor %}_reverse_etl_spread
                order by _reverse_etl_at, _reverse_etl_fact is not null, _reverse_etl_version.until nulls last
                rows between unbounded preceding and current row
            ) as _reverse_etl_last
            from {{ reverse_etl._facts_and_versions(facts, dimension, keys, at, valid_from, valid_to) }}
        )
        where _reverse_etl_fact is not null
    )
)
{%- endmacro %}


{# One row for each fact and each version. A fact without a key meets no version, so that such facts need not all go to one task. #}
{% macro _facts_and_versions(facts, dimension, keys, at, valid_from, valid_to) -%}
(
    select
        {%- for name in keys %}
        {{ reverse_etl._quote(name) }} as _reverse_etl_key_{{ loop.index }},
        {%- endfor %}
        {{ reverse_etl._quote(at) }} as _reverse_etl_at,
        if({{ reverse_etl._any_column_null(keys) }}, xxhash64({{ reverse_etl._quote(at) }}), null) as _reverse_etl_spread,
        struct(*) as _reverse_etl_fact,
        null as _reverse_etl_version
    from {{ facts }}
    union all
    select
        {%- for name in keys %}
        {{ reverse_etl._quote(keys[name]) }},
        {%- endfor %}
        {{ reverse_etl._quote(valid_from) }}, null, null, struct({{ reverse_etl._quote(valid_to) }} as until, struct(*) as version)
    from {{ dimension }}
    where not {{ reverse_etl._any_column_null(keys.values()) }}
        {#- A clock that was set back between two captures leaves a version that held at no time, which would hide those after it. #}
        and coalesce({{ reverse_etl._quote(valid_from) }} < {{ reverse_etl._quote(valid_to) }}, true)
)
{%- endmacro %}


{% macro _any_column_null(names) -%}
    ({% for name in names %}{{ reverse_etl._quote(name) }} is null{{ ' or ' if not loop.last }}{% endfor %})
{%- endmacro %}
