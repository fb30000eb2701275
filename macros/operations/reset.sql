{#
  Start a changelog anew on purpose: its table is set aside under another name, and the next run makes a new one with a new identity.
    dbt run-operation reset --args '{model: contacts_changelog}'
#}
{% macro reset(model) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- set node = reverse_etl._changelog_node(model) -%}
    {%- set target = adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) -%}
    {%- if target is not none or not reverse_etl._finish_reset(node) -%}
        {%- set shown = reverse_etl._shown_of(node, target) if target is not none else none -%}
        {%- if shown -%}{%- do run_query('alter table ' ~ target ~ " set tblproperties ('dbt_reverse_etl.resetting' = 'true')") -%}{%- endif -%}
        {%- set aside = reverse_etl._set_aside(node, '__reset_') -%}
        {%- do log('reset ' ~ model ~ ': its history now stands in ' ~ aside ~ '. The next dbt run captures snapshot 1 of a new changelog. Its syncs then ask for resync or adopt. Build with --full-refresh each model that keeps its snapshot ids.', info=true) -%}
        {%- if shown -%}{%- do reverse_etl._show_aside(node, shown, aside) -%}{%- endif -%}
    {%- endif -%}
{% endmacro %}


{#
  The rest of a reset that was killed after it set the table aside: its view names the table, and so would show the snapshots of the new one before they
  passed their tests. Returns whether there was any.
#}
{% macro _finish_reset(node) %}
    {%- set aside = reverse_etl._newest_reset(node) -%}
    {%- set is_open = aside is not none and 'dbt_reverse_etl.resetting' in reverse_etl._table_properties(aside) -%}
    {%- set shown = reverse_etl._shown_of(node, aside) if is_open else none -%}
    {%- if shown -%}{%- do reverse_etl._show_aside(node, shown, aside) -%}{%- endif -%}
    {{ return(shown is not none) }}
{% endmacro %}


{# The table that the newest reset of a changelog set aside, or none. #}
{% macro _newest_reset(node) %}
    {%- set table, names = api.Relation.create(database=node.database, schema=node.schema, identifier=node.alias, type='table'), [] -%}
    {%- for row in run_query('show tables in ' ~ table.without_identifier() ~ " like '" ~ node.alias ~ "__reset_*'").rows -%}
        {%- if modules.re.fullmatch(modules.re.escape(node.alias) ~ '__reset_[0-9]{14}', row[1], modules.re.IGNORECASE) -%}{%- do names.append(row[1]) -%}{%- endif -%}
    {%- endfor -%}
    {{ return(table.incorporate(path={'identifier': names | max}) if names else none) }}
{% endmacro %}


{# What the published view shows of a table, {view, name, snapshot_id, columns}; none: nothing, or it was moved to the table already. #}
{% macro _shown_of(node, table) %}
    {%- set published = reverse_etl._published(table) -%}
    {#- Of a version before, Spark may hide the name: then the setting has it. -#}
    {%- set name = (published.view or reverse_etl._own_block(node.config).get('publish')) if published else none -%}
    {%- set view = reverse_etl._published_view(node, name) if name else none -%}
    {%- set found = adapter.get_relation(database=view.database, schema=view.schema, identifier=view.identifier) if view else none -%}
    {%- set head = reverse_etl._head(table) if found and found.type == 'view' else none -%}
    {%- if head is none -%}{{ return(none) }}{%- endif -%}
    {%- set columns = reverse_etl._columns_at(head, [], reverse_etl._columns_of(table)[reverse_etl._own_columns() | length:]) -%}
    {{ return({'view': view, 'name': name, 'snapshot_id': published.snapshot_id, 'columns': columns}) }}
{% endmacro %}


{# A table that was set aside keeps what was published until its view names it. #}
{% macro _show_aside(node, shown, aside) %}
    {%- do reverse_etl._show(shown.view, shown.columns, aside, shown.snapshot_id) -%}
    {%- do run_query('alter table ' ~ aside ~ " unset tblproperties if exists ('dbt_reverse_etl.resetting', 'dbt_reverse_etl.published', 'dbt_reverse_etl.published_as')") -%}
    {%- do log('reset ' ~ reverse_etl._named(node) ~ ': ' ~ shown.name ~ ' shows snapshot ' ~ shown.snapshot_id ~ ' of ' ~ aside ~ ' until another one is published: keep that table till then.', info=true) -%}
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
    {%- do reverse_etl._refuse_other_target() -%}
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
    {#- As dbt-databricks composes it; the others have neither a catalog nor the full name. -#}
    {%- set catalog = adapter.get_catalog_integration(node.config['catalog_name'] | lower) if node.config.get('catalog_name') else none -%}
    {%- set root = node.config.get('location_root') or (catalog.external_volume if catalog else none) -%}
    {%- set names = [node.database, node.schema, node.alias] if node.config.get('include_full_name_in_path') else [node.alias] -%}
    {%- set place = modules.re.sub('^\\w+:/*', '/', root or '').rstrip('/') ~ '/' ~ names | join('/') -%}
    {%- if root and run_query('describe detail ' ~ relation).rows[0]['location'].rstrip('/').endswith(place) -%}
        {#- A rename leaves the files of an external table where they are. -#}
        {{ exceptions.raise_compiler_error(relation ~ ': found its files below location_root, where the next run would find them again; expected another place for the new table. Next: give the model another location_root, and repeat this') }}
    {%- endif -%}
    {%- set aside = relation.incorporate(path={'identifier': relation.identifier ~ suffix ~ run_started_at.strftime('%Y%m%d%H%M%S')}) -%}
    {%- do adapter.rename_relation(relation, aside) -%}
    {{ return(aside) }}
{% endmacro %}
