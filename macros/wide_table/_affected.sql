{#
  The keys of a wide table whose rows may have changed: for each node with changes, the keys that its rows lead to as they were and as they are,
  walked over the tables as they are now. That is enough: of the rows of one key that changed, take the one nearest to the root; all between it and
  the root are as they were. (Acyclic equi-joins, inner, left and full, and aggregates by the columns of a join; not the rows that
  two versions leave out between them, so `changes` holds every image, not only the net change.)
    plan       see _wide_plan, without problems
    relations  {node: what stands behind `from`}
    changes    {node: all images of its changed rows, before and after; behind `from`, in parentheses}; nodes without changes are left out
    indexes    {node: reverse index}: which rows of its parent had which ids of the node, instead of the parent as it is now
    nearby     {node: the part of its reverse index that may hold the ids which changed}
#}
{% macro _affected_keys(plan, relations, changes, indexes={}, nearby={}) -%}
{%- set branches = [] -%}
{%- for node in plan.group + plan.joined if node.name in changes -%}
    {%- do branches.extend(reverse_etl._affected_branches(plan, relations, node, changes[node.name], indexes, nearby)) -%}
{%- endfor -%}
{%- if branches -%}
select {{ reverse_etl._columns(plan.key) }} from (
{{ branches | join('\n    union\n') }}
)
where {% for name in plan.key %}{{ reverse_etl._quote(name) }} is not null{{ ' and ' if not loop.last }}{% endfor %}
{%- else -%}
select {{ reverse_etl._columns(plan.key) }} from {{ relations[plan.root] }} where false
{%- endif -%}
{%- endmacro %}


{# From one node up to the root: a list, because the key may lie in several tables of the root's group. #}
{% macro _affected_branches(plan, relations, node, images, indexes, nearby) %}
    {%- set alias = reverse_etl._quote(node.name) -%}
    {%- if node in plan.group -%}
        {{ return([reverse_etl._affected_branch(node.name, reverse_etl._affected_select(plan, node.key_of, alias), images ~ ' as ' ~ alias)]) }}
    {%- endif -%}
    {%- set way, names = {'at': node, 'from': images ~ ' as ' ~ alias}, [node.name] -%}
    {%- set branches = [] -%}
    {%- for _ in plan.nodes if not branches -%}
        {%- set child, parent = way.at, plan.nodes[way.at.parent] -%}
        {%- set index = nearby.get(child.name) if child.name == node.name else none -%}
        {%- set columns = {} -%}
        {%- for pair in child.pairs -%}{%- do columns.update({pair.parent: pair.child}) -%}{%- endfor -%}
        {%- set from_key = columns | reject('in', plan.key) | list | length == 0 if parent.name == plan.root else false -%}
        {%- if parent in plan.group and parent.key_of.values() | reject('in', columns) | list | length == 0 -%}
            {%- set key_of = {} -%}
            {%- for name in plan.key -%}{%- do key_of.update({name: columns[parent.key_of[name]]}) -%}{%- endfor -%}
            {%- do branches.append(reverse_etl._affected_branch(names | join(' -> '), reverse_etl._affected_select(plan, key_of, reverse_etl._quote(child.name)), way.from)) -%}
        {%- else -%}
            {%- for member in (plan.group if from_key else [parent]) -%}
                {%- set source = way.from ~ reverse_etl._affected_step(child, member, index or indexes.get(child.name, relations[member.name]), from_key) -%}
                {%- if member in plan.group -%}
                    {%- do branches.append(reverse_etl._affected_branch((names + [member.name]) | join(' -> '), reverse_etl._affected_select(plan, member.key_of, reverse_etl._quote(member.name)), source)) -%}
                {%- else -%}
                    {%- do way.update({'at': member, 'from': source}) -%}{%- do names.append(member.name) -%}
                {%- endif -%}
            {%- endfor -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(branches) }}
{% endmacro %}


{# One step: the rows of `parent` that join the child. #}
{% macro _affected_step(child, parent, relation, from_key) %}
    join {{ relation }} as {{ reverse_etl._quote(parent.name) }}
        on {% for pair in child.pairs -%}
            {{ reverse_etl._columns([parent.key_of[pair.parent] if from_key else pair.parent], reverse_etl._quote(parent.name)) }} = {{ reverse_etl._columns([pair.child], reverse_etl._quote(child.name)) }}
            {{- ' and ' if not loop.last }}
        {%- endfor %}
{%- endmacro %}

{% macro _affected_select(plan, key_of, alias) -%}
    {% for name in plan.key %}{{ reverse_etl._columns([key_of[name]], alias) }} as {{ reverse_etl._quote(name) }}{{ ', ' if not loop.last }}{% endfor %}
{%- endmacro %}

{% macro _affected_branch(way, columns, source) %}
    -- {{ way }}
    select {{ columns }}
    from {{ source }}
{%- endmacro %}


{#
  A key that is text in one table and not in another meets it by a cast, '007' the number 7: then what changed in one does not name the key of the row.
    types  {node: [{name, type}]}
#}
{% macro _keys_by_cast(plan, types) %}
    {%- set problems = [] -%}
    {%- for theirs, own in reverse_etl._pairs_of_keys(plan) -%}
        {%- set their_type, own_type = reverse_etl._type_among(types[theirs.node], theirs.column), reverse_etl._type_among(types[own.node], own.column) -%}
        {%- if reverse_etl._kind_of_key(their_type) != reverse_etl._kind_of_key(own_type) -%}
            {%- do problems.append('keys meet by a cast: ' ~ theirs.node ~ '.' ~ theirs.column ~ ' is ' ~ their_type ~ ', ' ~ own.node ~ '.' ~ own.column ~ ' is ' ~ own_type) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(problems) }}
{% endmacro %}

{# The columns that join a column of the key: [[{node, column} of the parent, {node, column} of the child]] #}
{% macro _pairs_of_keys(plan) %}
    {%- set pairs = [] -%}
    {%- for node in plan.group[1:] + plan.joined -%}
        {%- for pair in node.pairs if pair.parent in plan.nodes[node.parent].key_of.values() -%}
            {%- do pairs.append([{'node': node.parent, 'column': pair.parent}, {'node': node.name, 'column': pair.child}]) -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(pairs) }}
{% endmacro %}

{% macro _type_among(columns, name) %}
    {%- for column in columns if column.name | lower == name | lower -%}{{ return(column.type) }}{%- endfor -%}
{% endmacro %}

{# Numbers meet numbers as they are, and times times; texts of a fixed length meet after they are padded. #}
{% macro _kind_of_key(type) -%}
    {{ 'text' if type.startswith(('string', 'varchar')) else type if type.startswith('char') else 'other' }}
{%- endmacro %}


{# What is declared and may change a row without a change of the rows that it is made of. #}
{% macro _wide_outside(plan) %}
    {%- set reasons = [] -%}
    {%- for node in plan.group + plan.joined -%}
        {%- for text in [node.where or ''] + node.aggregates.values() | list -%}
            {%- for word in reverse_etl._outside_words(text | string | lower) -%}
                {%- do reasons.append('wide_table.nodes.' ~ node.name ~ ' uses ' ~ word ~ ', so that more changes than its rows' ~ ('; if it is a column, write it as `session`.' if word.startswith('session') and word.endswith('.') else '')) -%}
            {%- endfor -%}
        {%- endfor -%}
    {%- endfor -%}
    {{ return(reasons | unique | list) }}
{% endmacro %}


{# Of SQL in lower case: a name in backticks is a word only where it is called, and of strings count those that are the time, as date 'today'. #}
{% macro _outside_words(sql) %}
    {%- set outside = [
        'over', 'select', 'table', '(from', 'limit', 'rand', 'randn', 'random', 'randstr', 'uniform', 'uuid', 'shuffle', 'now', 'curdate', 'getdate', 'current_date', 'current_time',
        'current_timestamp', 'localtimestamp', 'unix_timestamp', 'user', 'current_user', 'session_user', 'monotonically_increasing_id', 'input_file_name', 'spark_partition_id',
        'input_file_block_start', 'input_file_block_length', '_metadata', 'current_catalog', 'current_schema', 'current_database', 'is_member', 'is_account_group_member',
    ] -%}
    {#- Spark takes such a text for the time wherever it becomes a date. -#}
    {%- set time = "(?:\\b(?:date|timestamp\\w*)\\s*)?r?['\"]\\s*(?:now|today|tomorrow|yesterday)\\b[^'\"]*['\"]" -%}
    {%- set strings = ["\\br'[^']*'", '\\br"[^"]*"', "'(?:[^'\\\\]|\\\\.)*'", '"(?:[^"\\\\]|\\\\.)*"'] -%}
    {#- A variable of the session, not a field of a struct. -#}
    {%- set variable = '(?<![.\\w])(?:system\\s*[.]\\s*)?session\\s*[.]' -%}
    {#- A comment in another one ends where Spark says; what stands in it is not told from SQL. -#}
    {%- set comments = ['--[^\\r\\n]*', '/[*](?:(?!/[*]).)*?[*]/', '/[*]'] -%}
    {%- set found = [] -%}
    {%- for token in modules.re.findall('(?s)' ~ ([time] + strings + comments + [variable, '`[^`]*`\\s*[(]?', '[(]\\s*from\\b', '\\w+']) | join('|'), sql) -%}
        {%- set word = token.split('`')[1] if token.startswith('`') and token.endswith('(') else token.split() | join if token.startswith('(') else token -%}
        {%- if word in outside + ['/*'] or modules.re.fullmatch(time ~ '|' ~ variable, token) -%}{%- do found.append(word) -%}{%- endif -%}
    {%- endfor -%}
    {{ return(found) }}
{% endmacro %}


{# All images of the rows that changed after one snapshot of a changelog until another, behind `from`. A prune meanwhile is an error, never a gap. #}
{% macro _images_between(table, after, until) -%}
    {%- set range = '_snapshot_id > ' ~ after ~ ' and _snapshot_id <= ' ~ until -%}
    (select * from {{ table }} where {{ range }} and _change in ('insert', 'update_preimage', 'update_postimage', 'delete', 'pruned')
        and case when _change = 'pruned' then {{ reverse_etl._refuse_pruned(range) }} else true end)
{%- endmacro %}
