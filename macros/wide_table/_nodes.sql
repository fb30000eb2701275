{#
  The nodes of a wide table as they are declared.
    name         unique; the alias in the SQL
    table        what it reads: the name of a model, seed or snapshot, or source.table
    key          column or columns that identify a row
    parent       the node that it joins; default: the root
    join_on      {column of the parent: column of this node}, or names that are the same on both sides; default with join: full: key to key
    join         left, inner, or full: a table that shares the root's key
    cardinality  one, or many: rows are aggregated by the columns of this node in join_on
    columns      what the wide table shows: names, with `prefix` before them, or {column: name}
    aggregates   with many: {name: SQL aggregate}
    where        SQL over the columns of the table: other rows are as if they were not there
    priority     a number; of the nodes whose parent stands, the smallest joins first
    reverse_index  name of a model over reverse_index(): which keys of the parent had which ids of this node
    changes      how the capture strategy affected_keys learns what changed: changelog, where the table is one, or cdf
  Returns {name: node}; problems are appended. What is wrong is replaced by a default, so that the checks after it can go on.
#}
{% macro _wide_nodes(given, problems) %}
    {%- set nodes = {} -%}
    {%- set listed = reverse_etl._wide_list(given.get('nodes')) -%}
    {%- if not listed -%}{%- do problems.append('wide_table.nodes: found none; expected a list of nodes; add them') -%}{%- endif -%}
    {%- for one in listed -%}
        {%- set name = one.get('name') if one is mapping else none -%}
        {%- if not name or name is not string -%}
            {%- do problems.append('wide_table.nodes: number ' ~ loop.index ~ ' is no node with a name; expected a mapping; add `name`') -%}
        {%- elif name | lower in nodes | map('lower') | list -%}
            {%- do problems.append('wide_table.nodes: found ' ~ name ~ ' twice; expected each name once; a table that is joined twice is two nodes') -%}
        {%- else -%}
            {%- do nodes.update({name: reverse_etl._wide_node(one, given.get('root'), problems)}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(nodes) }}
{% endmacro %}


{% macro _wide_node(given, root, problems) %}
    {%- set place = 'wide_table.nodes.' ~ given.name ~ '.' -%}
    {%- set is_root = given.name == root -%}
    {%- set is_many = given.get('cardinality') == 'many' -%}
    {%- set known = ['name', 'table', 'key', 'columns', 'prefix', 'where', 'priority', 'changes'] + ([] if is_root else ['parent', 'join_on', 'join', 'cardinality', 'aggregates', 'reverse_index']) -%}
    {%- for option in given if option not in known -%}
        {%- do problems.append(place ~ option ~ ': no option of ' ~ ('the root' if is_root else 'a node') ~ '; expected one of ' ~ known | join(', ') ~ '; ' ~ ('write join_on: YAML reads on as true' if option is boolean else 'remove it')) -%}
    {%- endfor -%}
    {%- set choices = {'cardinality': ['one', 'many'], 'join': ['left', 'inner', 'full'], 'changes': [none, 'changelog', 'cdf']} -%}
    {%- for option, expected in choices.items() if given.get(option, expected[0]) not in expected -%}
        {%- do problems.append(place ~ option ~ ": found '" ~ given[option] ~ "'; expected " ~ expected | reject('none') | join(' or ') ~ '; correct it') -%}
    {%- endfor -%}
    {%- for option in ['table', 'parent', 'where', 'prefix', 'reverse_index'] if given.get(option) is not none and given.get(option) is not string -%}
        {%- do problems.append(place ~ option ~ ': found no text; expected one; correct it') -%}
    {%- endfor -%}
    {%- if not given.get('table') -%}{%- do problems.append(place ~ 'table: not found; expected a model, seed or snapshot, or source.table; add it') -%}{%- endif -%}
    {%- set priority = given.get('priority', 0) -%}
    {%- if priority is not number or priority is boolean -%}{%- do problems.append(place ~ "priority: found '" ~ priority ~ "'; expected a number; correct it") -%}{%- endif -%}
    {%- for option in (['columns', 'prefix'] if is_many else ['aggregates']) if option in given -%}
        {%- do problems.append(place ~ option ~ ': no option of cardinality ' ~ ('many; expected aggregates' if is_many else 'one; expected columns') ~ '; remove it') -%}
    {%- endfor -%}
    {%- if is_many and given.get('aggregates') is not mapping -%}
        {%- do problems.append(place ~ "aggregates: not found; expected it with cardinality many; add {name: 'count(*)'}") -%}
    {%- endif -%}
    {%- for option in ['key', 'join_on'] -%}
        {%- for name in reverse_etl._wide_list(given.get(option)) if name is not string -%}
            {%- do problems.append(place ~ option ~ ": found '" ~ name ~ "', which is no text; expected names of columns; put it in quotes: YAML reads no, on and 2024 as other values") -%}
        {%- endfor -%}
    {%- endfor -%}
    {%- set key = reverse_etl._wide_names(given.get('key')) -%}
    {%- if not key and not is_many -%}{%- do problems.append(place ~ 'key: not found; expected the column or columns that identify a row; add it') -%}{%- endif -%}
    {{ return({
        'name': given.name, 'table': (given.get('table') or '') | string, 'key': key, 'parent': none if is_root else given.get('parent') or root,
        'join': given.get('join', 'left'), 'cardinality': 'many' if is_many else 'one', 'where': given.get('where'), 'changes': given.get('changes'), 'reverse_index': given.get('reverse_index'),
        'priority': priority if priority is number else 0, 'aggregates': given.aggregates if is_many and given.get('aggregates') is mapping else {},
        'pairs': reverse_etl._wide_pairs(given.get('join_on')), 'output': reverse_etl._wide_output(given, place, problems), 'key_of': {},
    }) }}
{% endmacro %}


{% macro _wide_list(given) %}
    {{ return(given | list if given is sequence and given is not string and given is not mapping else []) }}
{% endmacro %}

{# A name or a list of names, as a list. #}
{% macro _wide_names(given) %}
    {{ return([given] if given is string else reverse_etl._wide_list(given) | select('string') | list) }}
{% endmacro %}

{# join_on as [{parent, child}], in the order of the names: the order of a mapping has no meaning. #}
{% macro _wide_pairs(given) %}
    {%- set pairs = [] -%}
    {%- for name in (given if given is mapping else reverse_etl._wide_names(given)) -%}
        {%- do pairs.append({'parent': name | string, 'child': (given[name] if given is mapping else name) | string}) -%}
    {%- endfor -%}
    {{ return(pairs | sort(attribute='parent', case_sensitive=true) | list) }}
{% endmacro %}

{# The columns that a node shows, as [{column, name}]. #}
{% macro _wide_output(given, place, problems) %}
    {%- set output = [] -%}
    {%- set columns = given.get('columns') -%}
    {%- for one in ([columns] if columns is string or columns is mapping else reverse_etl._wide_list(columns)) -%}
        {%- if one is string -%}{%- do output.append({'column': one, 'name': (given.get('prefix') or '') ~ one}) -%}{%- endif -%}
        {%- for column, name in (one.items() if one is mapping else []) -%}{%- do output.append({'column': column | string, 'name': name | string}) -%}{%- endfor -%}
        {%- if one is not string and one is not mapping -%}{%- do problems.append(place ~ 'columns: found ' ~ one ~ '; expected names, or {column: name}; correct it') -%}{%- endif -%}
    {%- endfor -%}
    {%- for name in (given.get('aggregates') if given.get('aggregates') is mapping else {}) -%}{%- do output.append({'column': name | string, 'name': name | string}) -%}{%- endfor -%}
    {{ return(output) }}
{% endmacro %}
