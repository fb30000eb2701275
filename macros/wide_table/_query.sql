{#
  The SQL of a wide table.
    plan       see _wide_plan, without problems
    relations  {node: what stands behind `from`: a table, or a sub-query in parentheses}
#}
{% macro _wide_query(plan, relations) -%}
{%- set nodes = plan.group + plan.joined -%}
with
{%- for node in nodes %}

{{ reverse_etl._quote(node.name) }} as (
    {{- reverse_etl._wide_rows(node, relations[node.name]) }}
){{ ',' if not loop.last }}
{%- endfor %}

select
{%- for column in plan.columns %}
    {{ column.expression }}{% if not column.expression.endswith('.' ~ reverse_etl._quote(column.name)) %} as {{ reverse_etl._quote(column.name) }}{% endif %}{{ ',' if not loop.last }}
{%- endfor %}
from {{ reverse_etl._quote(plan.root) }}
{%- for node in nodes[1:] %}
{{ node.join }} join {{ reverse_etl._quote(node.name) }}
    on {% for pair in node.pairs -%}
        {{ reverse_etl._columns([pair.child], reverse_etl._quote(node.name)) }} = {{ reverse_etl._wide_parent_column(plan, node, pair.parent) }}
        {{- ' and ' if not loop.last }}
    {%- endfor %}
{%- endfor %}
{%- endmacro %}


{# The rows of a node: as they are, or one for each group, so that no join multiplies rows. #}
{% macro _wide_rows(node, relation) %}
    {%- if node.cardinality == 'one' %}
    select * from {{ relation }}
        {%- if node.where %}
    where {{ node.where }}
        {%- endif %}
    {%- else %}
    {%- set groups = node.pairs | map(attribute='child') | list %}
    select
        {{ reverse_etl._columns(groups) }}
        {%- for name, aggregate in node.aggregates.items() %},
        {{ reverse_etl._wide_sql(aggregate) }} as {{ reverse_etl._quote(name) }}
        {%- endfor %}
    from {{ relation }}
    where {% for name in groups %}{{ reverse_etl._quote(name) }} is not null{{ ' and ' if not loop.last }}{% endfor %}{% if node.where %} and ({{ reverse_etl._wide_sql(node.where) }}){% endif %}
    group by {{ reverse_etl._columns(groups) }}
    {%- endif %}
{%- endmacro %}


{# SQL of a declaration, behind which more follows: a comment at its end takes the rest of its line. #}
{% macro _wide_sql(text) -%}
    {{ text }}{{ '\n' if '--' in text | string }}
{%- endmacro %}


{# The key belongs to the whole group: to those of its tables that stand before the node. #}
{% macro _wide_parent_column(plan, node, column) -%}
    {%- if node.parent == plan.root and column in plan.key -%}
        {%- set before = plan.group[:plan.group.index(node)] if node in plan.group else plan.group -%}
        {{ reverse_etl._wide_key_column(before, column) }}
    {%- else -%}
        {{ reverse_etl._columns([column], reverse_etl._quote(node.parent)) }}
    {%- endif -%}
{%- endmacro %}
