{# What a current_* test looks at: the head image. Its `where` applies to that image: over the change rows it would hide deletes. #}
{% macro _tested_image(relation) -%}
    {%- if config.get('where') and execute -%}
        {%- set node = graph.nodes[model.attached_node] -%}
        {#- `get_where_subquery`, dbt's or the project's own, has put the changelog into a query; with --defer, that may be the one of another target. -#}
        {%- set other = node.defer_relation -%}
        {%- set place = other if other and reverse_etl._named_in(relation | string, other) else node -%}
        {%- set changelog = api.Relation.create(database=place.database, schema=place.schema, identifier=place.alias) -%}
        {%- set found = reverse_etl._named_in(relation | string, place) -%}
        {%- if not found -%}
            {{ reverse_etl._view_refuse(
                'get_where_subquery', 'no ' ~ place.relation_name ~ ' in what the macro of the project returns', 'the relation with white space before and after it',
                'return (select * from {{ relation }} where ...), as the macro of dbt does'
            ) }}
        {%- endif -%}
        {{ (relation | string)[:found.start()] ~ ' ' ~ reverse_etl.current(changelog) ~ ' ' ~ (relation | string)[found.end():] }}
    {%- else -%}
        {{ reverse_etl.current(relation) }}
    {%- endif -%}
{%- endmacro %}


{# Where a text names a relation: a match, or none. #}
{% macro _named_in(text, place) %}{{ return(modules.re.search('(^|\\s)' ~ modules.re.escape(place.relation_name) ~ '(\\s|$)', text)) }}{% endmacro %}


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
