{# The syncs of the project, or those of these names: name, changelog (none: it was not built), and its relation as the ledger has it. Known only when a test runs. #}
{% macro _synced(syncs) -%}
    {%- set found = [] -%}
    {%- set names = [syncs] if syncs is string else syncs -%}
    {%- for exposure in (graph.get('exposures', {}).values() if execute else []) -%}
        {%- set meta = exposure.get('config', {}).get('meta') or exposure.get('meta') or {} -%}
        {%- if 'reverse_etl' in meta and (names is none or exposure.name in names) -%}
            {%- set node = graph.nodes[exposure.depends_on.nodes[0]] -%}
            {%- do found.append({
                'name': exposure.name,
                'changelog': adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias),
                'relation': node.relation_name,
            }) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- if execute and names is not none and found | length != names | unique | list | length -%}
        {{ reverse_etl._view_refuse(
            'syncs', names | join(', '), 'names of syncs: ' ~ (found | map(attribute='name') | join(', ') or 'none of them is one'), 'correct the names'
        ) }}
    {%- endif -%}
    {{ return(found) }}
{%- endmacro %}


{# Which of some syncs a row is about. #}
{% macro _is_one_of(synced) -%}
    {%- if synced -%} sync in ({% for one in synced %}{{ reverse_etl._string(one.name) }}{{ ', ' if not loop.last }}{% endfor %})
    {%- else -%} false {%- endif -%}
{%- endmacro %}
