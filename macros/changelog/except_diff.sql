{#
  The difference of any two relations by literal EXCEPT both ways, at most one row per key: the new row, or for a delete the old one.
  NULL equals NULL. Each key stands at most once on each side.
#}
{% macro except_diff(new, old, key=none, columns=none) -%}
{%- set names = reverse_etl._except_columns(new, columns) -%}
{%- set key_columns = reverse_etl._key(new, key) -%}
(
    select
        case when not _reverse_etl_was then 'insert' when not _reverse_etl_is then 'delete' else 'update' end as _change,
        {{ names }}
    from (
        select
            *,
            bool_or(_reverse_etl_new) over (partition by {{ key_columns }}) as _reverse_etl_is,
            bool_or(not _reverse_etl_new) over (partition by {{ key_columns }}) as _reverse_etl_was
        from (
            select *, true as _reverse_etl_new from (select {{ names }} from {{ new }} except select {{ names }} from {{ old }})
            union all
            select *, false as _reverse_etl_new from (select {{ names }} from {{ old }} except select {{ names }} from {{ new }})
        )
    )
    where _reverse_etl_new or not _reverse_etl_is
)
{%- endmacro %}


{# EXCEPT compares by position, so the columns are named once for both sides. The adapter would end its list at a column such as `# of orders`. #}
{% macro _except_columns(relation, columns) -%}
    {%- if columns -%}
        {{ reverse_etl._view_columns(columns) }}
    {%- elif execute is not defined or execute -%}
        {#- Listed, it is whole also with --empty; the adapter knows what is not listed, as a table by its path, and has no column of what is not there. -#}
        {%- set listed = load_cached_relation(relation) if relation.identifier and relation.schema else none -%}
        {%- set table = listed or (relation if relation.identifier and adapter.get_columns_in_relation(relation) else none) -%}
        {%- set found = reverse_etl._described(table) | map(attribute='name') | list if table else [] -%}
        {%- if not found -%}
            {{ reverse_etl._view_refuse('except_diff', 'no columns of ' ~ relation ~ ' in the catalog', 'a table or a view', 'pass columns=[...]') }}
        {%- endif -%}
        {{ reverse_etl._columns(found) }}
    {%- endif -%}
{%- endmacro %}
