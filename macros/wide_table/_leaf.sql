{#
  The first model of a table in a generated chain (dbt-reverse-etl wide-table generate): the columns that its joins and the wide table need, under
  their names in the chain; of cardinality many one row for each group.
    node       see _wide_nodes
    relation   what stands behind `from`
    columns    [{column, name, type}]; type: what a column of a join is cast to, so that both of its sides have one, or none
    joined_by  columns of which none is NULL in a row that meets another; [] where the other rows are wanted, too
#}
{% macro _wide_leaf(node, relation, columns, joined_by) -%}
{%- set selected = [] -%}
{%- for one in columns -%}
    {%- set column = reverse_etl._quote(one.column) -%}
    {%- set expression = 'cast(' ~ column ~ ' as ' ~ one.type ~ ')' if one.type else column -%}
    {%- do selected.append(expression ~ (' as ' ~ reverse_etl._quote(one.name) if one.type or one.name != one.column else '')) -%}
{%- endfor -%}
{%- for name, aggregate in node.aggregates.items() -%}{%- do selected.append(reverse_etl._wide_sql(aggregate) ~ ' as ' ~ reverse_etl._quote(name)) -%}{%- endfor -%}
{%- set conditions = [] -%}
{%- for name in joined_by -%}{%- do conditions.append(reverse_etl._quote(name) ~ ' is not null') -%}{%- endfor -%}
{%- if node.where -%}{%- do conditions.append('(' ~ reverse_etl._wide_sql(node.where) ~ ')') -%}{%- endif -%}
select
    {{ selected | join(',\n    ') }}
from {{ relation }}
{%- if conditions %}
where {{ conditions | join(' and ') }}
{%- endif %}
{%- if node.cardinality == 'many' %}
group by {{ reverse_etl._columns(columns | map(attribute='column')) }}
{%- endif %}
{%- endmacro %}
