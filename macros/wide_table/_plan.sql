{#
  A wide table, checked and put into the order of its joins; the order of the nodes in the declaration has no meaning. Returns
    problems  what is wrong, all at once
    nodes     {name: node}, see _wide_nodes
    root, key
    group     the root, then the tables that share its key by full join
    joined    the others: each after its parent, then by priority, then by name
    columns   [{name, expression, node}]: what the wide table selects, its key first
    chain     as it is declared: only `wide-table generate` reads it
#}
{% macro _wide_plan(given) %}
    {%- set plan = {'problems': [], 'nodes': {}, 'root': none, 'key': [], 'group': [], 'joined': [], 'columns': [], 'chain': none} -%}
    {%- if given is not mapping -%}
        {%- do plan.problems.append('wide_table: found no mapping; expected root and nodes; declare them under meta.reverse_etl.wide_table, or pass them to wide_table()') -%}
        {{ return(plan) }}
    {%- endif -%}
    {%- for option in given if option not in ['root', 'nodes', 'chain'] -%}
        {%- do plan.problems.append('wide_table.' ~ option ~ ': no option of a wide table; expected root, nodes, chain; remove it') -%}
    {%- endfor -%}
    {%- do plan.update({'nodes': reverse_etl._wide_nodes(given, plan.problems), 'chain': given.get('chain')}) -%}
    {%- if given.get('root') in plan.nodes -%}
        {%- do plan.update({'root': given.root, 'key': plan.nodes[given.root].key}) -%}
    {%- else -%}
        {%- do plan.problems.append("wide_table.root: found '" ~ given.get('root', '') ~ "'; expected the name of a node" ~ (' (' ~ plan.nodes | sort | join(', ') ~ ')' if plan.nodes else '') ~ '; correct it') -%}
    {%- endif -%}
    {%- for name in plan.nodes | sort(case_sensitive=true) -%}{%- do reverse_etl._wide_join(plan.nodes[name], plan) -%}{%- endfor -%}
    {%- do reverse_etl._wide_order(plan) -%}
    {%- do reverse_etl._wide_columns(plan) -%}
    {{ return(plan) }}
{% endmacro %}


{# How a node joins its parent; for the tables of the root's group also which of its columns is which of the key (key_of). #}
{% macro _wide_join(node, plan) %}
    {%- set place = 'wide_table.nodes.' ~ node.name ~ '.' -%}
    {%- set full = node.join == 'full' -%}
    {%- if node.name == plan.root -%}
        {%- for name in plan.key -%}{%- do node.key_of.update({name: name}) -%}{%- endfor -%}
    {%- elif plan.root is not none -%}
        {%- if full and not node.pairs and node.key | length == plan.key | length -%}
            {%- for name in plan.key -%}{%- do node.pairs.append({'parent': name, 'child': node.key[loop.index0]}) -%}{%- endfor -%}
        {%- endif -%}
        {%- do reverse_etl._wide_spelling(node, plan.nodes.get(node.parent)) -%}
        {%- set here, there = node.pairs | map(attribute='child') | list, node.pairs | map(attribute='parent') | list -%}
        {%- if not node.pairs -%}
            {%- do plan.problems.append(place ~ 'join_on: not found; expected {column of ' ~ node.parent ~ ': column of ' ~ node.name ~ '}; add it') -%}
        {%- elif node.cardinality == 'one' and node.key and here | sort != node.key | sort -%}
            {%- do plan.problems.append(place ~ 'join_on: found the columns ' ~ here | join(', ') ~ ' of ' ~ node.name ~ '; expected its key (' ~ node.key | join(', ') ~ '), or a row may meet several; correct it, or use cardinality: many') -%}
        {%- endif -%}
        {%- if node.parent not in plan.nodes -%}
            {%- do plan.problems.append(place ~ "parent: found '" ~ node.parent ~ "', so that nothing leads from the root to this node; expected one of " ~ plan.nodes | reject('equalto', node.name) | sort | join(', ') ~ '; correct it') -%}
        {%- elif plan.nodes[node.parent].cardinality == 'many' -%}
            {%- do plan.problems.append(place ~ 'parent: found ' ~ node.parent ~ ', of cardinality many; expected a parent with one row for a key; join the two in a model of their own, and aggregate that') -%}
        {%- endif -%}
        {%- if full and (node.parent != plan.root or there | sort != plan.key | sort) -%}
            {%- do plan.problems.append(place ~ 'join: found full, with ' ~ node.parent ~ ' on ' ~ (there | join(', ') or 'nothing') ~ '; expected a full join with the key of the root (' ~ plan.root ~ ': ' ~ plan.key | join(', ') ~ '); use left, or correct join_on') -%}
        {%- elif full -%}
            {%- for pair in node.pairs -%}{%- do node.key_of.update({pair.parent: pair.child}) -%}{%- endfor -%}
        {%- endif -%}
        {%- if node.reverse_index and node.parent == plan.root and there | reject('in', plan.key) | list | length == 0 -%}
            {%- do plan.problems.append(place ~ 'reverse_index: found a join by the key of the root (' ~ there | join(', ') ~ '); expected one by another column, for the key is known without an index; remove it') -%}
        {%- endif -%}
        {%- for name in node.aggregates if name | lower in here | map('lower') | list -%}
            {%- do plan.problems.append(place ~ 'aggregates: found the name ' ~ name ~ ', by which the rows are grouped; expected another one; rename it') -%}
        {%- endfor -%}
    {%- endif -%}
{% endmacro %}


{# Spark ignores the case of names: columns of a key are written as the key is, on both sides of the join. #}
{% macro _wide_spelling(node, parent) %}
    {%- for pair in node.pairs -%}
        {%- for name in node.key if name | lower == pair.child | lower -%}{%- do pair.update({'child': name}) -%}{%- endfor -%}
        {%- for name in (parent.key if parent else []) if name | lower == pair.parent | lower -%}{%- do pair.update({'parent': name}) -%}{%- endfor -%}
    {%- endfor -%}
{% endmacro %}


{# A priority queue of the nodes whose parent stands already. What never comes stands on a cycle, hangs on one, or on a node that is not there. #}
{% macro _wide_order(plan) %}
    {%- set sorted = plan.nodes.values() | sort(attribute='priority,name', case_sensitive=true) | list -%}
    {%- for node in sorted if node.name == plan.root -%}{%- do plan.group.append(node) -%}{%- endfor -%}
    {%- for node in sorted if node.join == 'full' and node.name != plan.root -%}{%- do plan.group.append(node) -%}{%- endfor -%}
    {%- set placed = plan.group | map(attribute='name') | list -%}
    {%- for _ in sorted -%}
        {%- set ready = sorted | rejectattr('name', 'in', placed) | selectattr('parent', 'in', placed) | list -%}
        {%- if ready -%}{%- do plan.joined.append(ready[0]) -%}{%- do placed.append(ready[0].name) -%}{%- endif -%}
    {%- endfor -%}
    {%- for node in sorted if node.name not in placed -%}
        {%- set way = [node.name] -%}
        {%- for _ in sorted if way[-1] in plan.nodes -%}{%- do way.append(plan.nodes[way[-1]].parent) -%}{%- endfor -%}
        {%- set cycle = way[:way.index(node.name, 1)] if node.name in way[1:] else [] -%}
        {%- if cycle and node.name == cycle | sort(case_sensitive=true) | first -%}
            {%- do plan.problems.append('wide_table.nodes: found the cycle ' ~ (cycle + [node.name]) | join(' -> ') ~ '; expected parents that lead to the root; correct `parent` of one of them') -%}
        {%- endif -%}
    {%- endfor -%}
{% endmacro %}


{% macro _wide_columns(plan) %}
    {%- for name in plan.key -%}
        {%- do plan.columns.append({'name': name, 'expression': reverse_etl._wide_key_column(plan.group, name), 'node': plan.root}) -%}
    {%- endfor -%}
    {%- for node in plan.group + plan.joined -%}
        {%- for column in node.output -%}
            {%- do plan.columns.append({'name': column.name, 'expression': reverse_etl._columns([column.column], reverse_etl._quote(node.name)), 'node': node.name}) -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- set nodes_of = {} -%}
    {%- for column in plan.columns -%}{%- do nodes_of.setdefault(column.name | lower, []).append(column.node) -%}{%- endfor -%}
    {%- for name, nodes in nodes_of.items() if nodes | length > 1 -%}
        {%- do plan.problems.append('wide_table: found the column ' ~ name ~ ' ' ~ nodes | length ~ ' times, from ' ~ nodes | unique | join(', ') ~ '; expected each name once; the key is there by itself; give the others a prefix, or rename: {column: name}') -%}
    {%- endfor -%}
{% endmacro %}


{# A column of the key, from whichever table of the group has the row. #}
{% macro _wide_key_column(group, name) -%}
    {%- set columns = [] -%}
    {%- for node in group if name in node.key_of -%}{%- do columns.append(reverse_etl._columns([node.key_of[name]], reverse_etl._quote(node.name))) -%}{%- endfor -%}
    {{ columns[0] if columns | length == 1 else 'coalesce(' ~ columns | join(', ') ~ ')' }}
{%- endmacro %}
