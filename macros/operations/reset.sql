{#
  Start a changelog anew on purpose: its table is set aside under another name, and the next run makes a new one with a new identity.
    dbt run-operation reset --args '{model: contacts_changelog}'
#}
{% macro reset(model) %}
    {%- set node = reverse_etl._changelog_node(model) -%}
    {%- set target = adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) -%}
    {%- set published = reverse_etl._published(target) if target is not none else none -%}
    {%- set view = reverse_etl._published_view(node, published.view) if published and published.view else none -%}
    {%- set shown = adapter.get_relation(database=view.database, schema=view.schema, identifier=view.identifier) if view else none -%}
    {%- set is_shown = shown and shown.type == 'view' and reverse_etl._found(node).head is not none -%}
    {%- set changelog = reverse_etl._opened_changelog('reset', model) if is_shown else none -%}
    {%- set aside = reverse_etl._set_aside(node, '__reset_') -%}
    {%- do log('reset ' ~ model ~ ': its history now stands in ' ~ aside ~ '. The next dbt run captures snapshot 1 of a new changelog; its syncs then ask for resync or adopt.', info=true) -%}
    {#- Its view names the table, and so would show the snapshots of the new one before they passed their tests. -#}
    {%- if changelog -%}
        {%- do reverse_etl._show(view, changelog, aside, published.snapshot_id) -%}
        {%- do log('reset ' ~ model ~ ': ' ~ published.view ~ ' shows snapshot ' ~ published.snapshot_id ~ ' of ' ~ aside ~ ' until another one is published: keep that table till then.', info=true) -%}
    {%- endif -%}
{% endmacro %}


{% macro _changelog_node(name) %}
    {%- set known = graph.nodes.values() | selectattr('resource_type', 'equalto', 'model') | selectattr('config.materialized', 'equalto', 'changelog') | list -%}
    {{ return(reverse_etl._the_one(name, known, "a model with materialized='changelog' (" ~ (known | map(attribute='name') | join(', ') or 'there is none') ~ ')')) }}
{% endmacro %}


{# What `_the_one` takes for a node: its name, if no other node has that. #}
{% macro _named(node) %}
    {%- set same = graph.nodes.values() | selectattr('name', 'equalto', node.name) | list -%}
    {{ return(node.name if same | length == 1 else node.unique_id.split('.', 1)[1]) }}
{% endmacro %}


{# The same for the model of a relation. #}
{% macro _named_by(relation) %}
    {%- for node in graph.nodes.values() if node.resource_type == 'model' and reverse_etl._is_relation_of(relation, node) -%}{{ return(reverse_etl._named(node)) }}{%- endfor -%}
    {{ return(relation.identifier) }}
{% endmacro %}


{# The node that a user names: people, people.v2 of a model with versions, or shop.people where another package has one, too. #}
{% macro _the_one(name, known, expected) %}
    {%- set found, names = [], [] -%}
    {%- for node in known if node.name == name or node.unique_id.split('.', 1)[1] in [name, node.package_name ~ '.' ~ name] -%}
        {%- do found.append(node) -%}
        {%- do names.append(node.unique_id.split('.', 1)[1]) -%}
    {%- endfor -%}
    {%- if found | length != 1 -%}
        {{ exceptions.raise_compiler_error(
            "model: found '" ~ name ~ "'" ~ (', which is ' ~ names | join(' and ') if names) ~ '; expected ' ~ (expected if not names else 'one of them') ~ '. Next: correct --args'
        ) }}
    {%- endif -%}
    {{ return(found[0]) }}
{% endmacro %}


{% macro _set_aside(node, suffix) %}
    {%- set relation = adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) -%}
    {%- if relation is none -%}
        {{ exceptions.raise_compiler_error(node.relation_name ~ ': found no such table; expected one to set aside. Next: dbt run creates it') }}
    {%- endif -%}
    {%- set root = node.config.get('location_root') -%}
    {%- set place = modules.re.sub('^\\w+:/*', '/', root or '').rstrip('/') ~ '/' ~ node.alias -%}
    {%- if root and run_query('describe detail ' ~ relation).rows[0]['location'].rstrip('/').endswith(place) -%}
        {#- A rename leaves the files of an external table where they are. -#}
        {{ exceptions.raise_compiler_error(relation ~ ': found its files below location_root, where the next run would find them again; expected another place for the new table. Next: give the model another location_root, and repeat this') }}
    {%- endif -%}
    {%- set aside = relation.incorporate(path={'identifier': relation.identifier ~ suffix ~ run_started_at.strftime('%Y%m%d%H%M%S')}) -%}
    {%- do adapter.rename_relation(relation, aside) -%}
    {{ return(aside) }}
{% endmacro %}
