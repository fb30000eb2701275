{# What a current_* test looks at: the head image. Its `where` applies to that image: over the change rows it would hide deletes. #}
{% macro _tested_image(relation) -%}
    {%- if config.get('where') and execute -%}
        {%- set node = graph.nodes[model.attached_node] -%}
        {#- `get_where_subquery`, dbt's or the project's own, has put the changelog into a query; with --defer, that may be the one of another target. -#}
        {%- set other = node.defer_relation -%}
        {%- set place = other if other and (' ' ~ other.relation_name ~ ' ') in relation | string else node -%}
        {%- set changelog = api.Relation.create(database=place.database, schema=place.schema, identifier=place.alias) -%}
        {%- set name = ' ' ~ place.relation_name ~ ' ' -%}
        {%- if name not in relation | string -%}
            {{ reverse_etl._view_refuse(
                'get_where_subquery', 'no' ~ name ~ 'in what the macro of the project returns', 'the relation with a space before and after it',
                'return (select * from {{ relation }} where ...), as the macro of dbt does'
            ) }}
        {%- endif -%}
        {{ relation | string | replace(name, ' ' ~ reverse_etl.current(changelog) ~ ' ', 1) }}
    {%- else -%}
        {{ reverse_etl.current(relation) }}
    {%- endif -%}
{%- endmacro %}


{# The rows that a foreign key may point to: of a changelog, those that are live. #}
{% macro _referenced_image(relation) -%}
    {%- set changelogs = [] -%}
    {%- if execute -%}
        {%- for node in graph.get('nodes', {}).values() if node.config.materialized == 'changelog' and reverse_etl._is_relation_of(relation, node) -%}
            {%- do changelogs.append(node) -%}
        {%- endfor -%}
    {%- endif -%}
    {{ reverse_etl.current(relation) if changelogs else relation }}
{%- endmacro %}
