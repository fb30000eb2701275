{#
  SCD type 3: each row of the head image, and for every tracked column the value before its last change and the time since which it is as it is.
  What a key was before it was deleted and came back is not looked at: then the previous value is NULL, as it is before the first change.
  Where pruning left neither the insert nor a later change, the time is NULL too: that of a full image, or of an update which may be of other columns, is not it.
#}
{% macro scd3(relation, tracked, key=none, columns=none) -%}
{%- set names = [tracked] if tracked is string else tracked -%}
{%- set in_order = 'partition by ' ~ reverse_etl._key(relation, key) ~ ' order by _snapshot_id, _reverse_etl_repeats' -%}
{%- set helpers, added = ['_reverse_etl_repeats', '_reverse_etl_ends'], [] -%}
{%- for name in names -%}
    {%- do helpers.extend(['_reverse_etl_changed_' ~ loop.index, '_reverse_etl_last_' ~ loop.index]) -%}
    {%- do added.extend(['previous_' ~ name, name ~ '_since']) -%}
{%- endfor -%}
{%- do reverse_etl._refuse_taken('scd3', relation, columns, added, 'leave it out with columns=[...], and if you need it, rename it in the model') -%}
(
    select
        {{ reverse_etl._view_columns(columns, helpers) }}
        {%- for name in names %},
        _reverse_etl_last_{{ loop.index }}.previous as {{ reverse_etl._quote('previous_' ~ name) }},
        _reverse_etl_last_{{ loop.index }}.since as {{ reverse_etl._quote(name ~ '_since') }}
        {%- endfor %}
    from (
        select *, lead(_snapshot_id) over in_order is null as _reverse_etl_ends
            {%- for name in names %},
            last_value(_reverse_etl_changed_{{ loop.index }}, true) over in_order as _reverse_etl_last_{{ loop.index }}
            {%- endfor %}
        from (
            select *
                {%- for name in names %},
                {{ reverse_etl._scd3_change(reverse_etl._quote(name)) }} as _reverse_etl_changed_{{ loop.index }}
                {%- endfor %}
            from {{ reverse_etl._view_versions(relation) }}
            window in_order as ({{ in_order }})
        )
        window in_order as ({{ in_order }})
    )
    where _reverse_etl_ends and _change <> 'delete'
)
{%- endmacro %}


{# What a row changes in a column: the value before and the time, or NULL. #}
{% macro _scd3_change(column) -%}
    case
        when lag(_change, 1, 'delete') over in_order = 'delete' then named_struct('previous', if(false, {{ column }}, null), 'since', if(_change = 'insert', _captured_at, null))
        when {{ column }} is distinct from lag({{ column }}) over in_order then named_struct('previous', lag({{ column }}) over in_order, 'since', _captured_at)
    end
{%- endmacro %}
