{# The key of a relation as a quoted list: as given, or the unique_key of the node whose relation this is. #}
{% macro _key(relation, key=none) -%}
    {%- if key -%}
        {{ reverse_etl._columns([key] if key is string else key) }}
    {%- elif execute is not defined or execute -%}
        {{ reverse_etl._columns(reverse_etl._key_of_node(relation)) }}
    {%- endif -%}
{%- endmacro %}


{# The resolver: needs dbt's graph, which neither the runner nor a unit test has; there the key has to be given. #}
{% macro _key_of_node(relation) -%}
    {%- set found = [] -%}
    {%- for node in graph.get('nodes', {}).values() if node.config.unique_key and reverse_etl._is_relation_of(relation, node) -%}
        {%- set unique_key = node.config.unique_key -%}
        {%- do found.append([unique_key] if unique_key is string else unique_key) -%}
    {%- endfor -%}
    {%- if found | map('join', ',') | unique | list | length != 1 -%}
        {{ reverse_etl._view_refuse(
            relation, ('several models with different keys' if found else 'no model with a unique_key') ~ ' behind this relation', 'one',
            "pass key= (a unit test always has to), as in reverse_etl.current(ref('...'), key='id')"
        ) }}
    {%- endif -%}
    {{- return(found[0]) -}}
{%- endmacro %}


{# By name and not by text: --empty and --sample wrap the relation, which keeps its names. With --defer, it may be that of another target. #}
{% macro _is_relation_of(relation, node) -%}
    {%- for place in [node] + ([node.defer_relation] if node.defer_relation else []) -%}
        {%- if relation.identifier -%}
            {%- set same_catalog = (relation.database or '') | lower == (place.database or '') | lower -%}
            {%- if same_catalog and relation.identifier | lower == place.alias | lower and relation.schema | lower == place.schema | lower -%}{{- return(true) -}}{%- endif -%}
        {%- elif relation | string | lower == place.relation_name | lower -%}
            {{- return(true) -}}
        {%- endif -%}
    {%- endfor -%}
    {{- return(false) -}}
{%- endmacro %}
