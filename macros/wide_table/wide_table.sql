{#
  The query of a wide table: the declaration that is passed, or the model's meta.reverse_etl.wide_table.
  Everything that is wrong with it is one error, when the model is compiled.
#}
{% macro wide_table(declaration=none) -%}
    {%- if not execute -%}
        {#- While dbt parses, each table is named, so that dbt knows on what the model depends. The configuration is not there yet. -#}
        {%- for node in declaration.nodes or [] if node is mapping and node.table is string -%}
            {%- set table = reverse_etl._wide_named(node.table) -%}
            {%- if node.reverse_index is string and model.resource_type != 'unit_test' -%}{%- set index = ref(node.reverse_index) -%}{%- endif -%}
        {%- endfor -%}
    {%- elif model.resource_type == 'unit_test' -%}
        {%- set plan = reverse_etl._plan_of_unit_test(declaration) -%}
        {{- reverse_etl._wide_query(plan, plan.relations) -}}
    {%- else -%}
        {%- set plan = reverse_etl._checked_plan(declaration or reverse_etl._own_block(config).get('wide_table')) -%}
        {{- reverse_etl._wide_query(plan, plan.relations) -}}
    {%- endif -%}
{%- endmacro %}


{# `source.table`, or the name of a model, seed or snapshot. #}
{% macro _wide_named(table) %}
    {{ return(source(*table.split('.', 1)) if '.' in table else ref(table)) }}
{% endmacro %}


{# The plan, with `relations`: the rows that the test gives, also in place of a changelog. dbt tells it neither the configuration of its model nor the graph. #}
{% macro _plan_of_unit_test(declaration) %}
    {%- if declaration is none -%}
        {%- do reverse_etl._view_refuse('unit test ' ~ model.name, 'no wide table in the SQL of its model', 'one that is passed: wide_table({...})', 'move it there from the YAML, which dbt does not tell a unit test') -%}
    {%- endif -%}
    {%- set plan = reverse_etl._wide_plan(declaration) -%}
    {%- do reverse_etl._refuse_wide_table(plan.problems) -%}
    {%- do plan.update({'relations': {}}) -%}
    {%- for node in plan.nodes.values() -%}
        {%- do plan.relations.update({node.name: reverse_etl._wide_named(node.table)}) -%}
    {%- endfor -%}
    {{ return(plan) }}
{% endmacro %}


{# The plan, with `relations`, `indexes` and `inputs`: {node: node of dbt's graph}; an error with all problems. #}
{% macro _checked_plan(declaration) %}
    {%- set plan = reverse_etl._wide_plan(declaration) -%}
    {%- set known = reverse_etl._inputs() -%}
    {%- do plan.update({'relations': {}, 'indexes': {}, 'inputs': {}}) -%}
    {%- set missing = [] -%}
    {%- for node in plan.nodes.values() if node.table -%}
        {%- set input = (known.get(node.table) or [none])[0] -%}
        {%- if input is none -%}
            {%- do missing.append(node.table) -%}
        {%- else -%}
            {%- do plan.inputs.update({node.name: input}) -%}
            {%- do plan.relations.update({node.name: reverse_etl._wide_relation(node, input, plan.problems)}) -%}
        {%- endif -%}
    {%- endfor -%}
    {%- for node in plan.nodes.values() if node.reverse_index -%}
        {%- if node.reverse_index in known -%}
            {%- do plan.indexes.update({node.name: reverse_etl._relation_of(known[node.reverse_index][0])}) -%}
        {%- else -%}
            {%- do missing.append(node.reverse_index) -%}
        {%- endif -%}
        {%- if node.parent in plan.inputs and plan.inputs[node.parent].config.materialized != 'changelog' -%}
            {%- do plan.problems.append('wide_table.nodes.' ~ node.name ~ '.reverse_index: found ' ~ plan.nodes[node.parent].table ~ ', to whose keys it would lead, as no changelog; expected one, for an index is kept from its snapshots; make one of it, or remove reverse_index') -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set named = plan.nodes.values() | map(attribute='table') | list + plan.nodes.values() | map(attribute='reverse_index') | list -%}
    {%- for name in named | unique(case_sensitive=true) if known.get(name, []) | length > 1 -%}
        {%- do plan.problems.append('wide_table.nodes: ' ~ reverse_etl._several(name, known[name])) -%}
    {%- endfor -%}
    {%- if missing -%}
        {%- do plan.problems.append('wide_table.nodes: found ' ~ missing | unique | sort | join(', ') ~ ', on which the model does not depend; expected tables that it does depend on ('
            ~ (known | sort | join(', ') or 'none') ~ '); correct the names, or add to the model: ' ~ reverse_etl._dependency_lines(missing)) -%}
    {%- endif -%}
    {%- do reverse_etl._refuse_wide_table(plan.problems) -%}
    {{ return(plan) }}
{% endmacro %}

{% macro _refuse_wide_table(problems) %}
    {%- if problems -%}
        {{ exceptions.raise_compiler_error('wide table ' ~ model.name ~ ':\n  ' ~ problems | join('\n  ')) }}
    {%- endif -%}
{% endmacro %}

{% macro _dependency_lines(tables) -%}
    {%- for table in tables | unique | sort %}-- depends_on: {{ '{{ ' }}{{ "source('" ~ table.split('.', 1) | join("', '") ~ "')" if '.' in table else "ref('" ~ table ~ "')" }}{{ ' }}' }}{{ ' ' if not loop.last }}{% endfor -%}
{%- endmacro %}


{# What stands behind `from`: of a changelog its rows as they are. #}
{% macro _wide_relation(node, input, problems) %}
    {%- set relation = reverse_etl._relation_of(input) -%}
    {%- if input.config.materialized != 'changelog' -%}
        {%- if node.changes == 'changelog' -%}
            {%- do problems.append('wide_table.nodes.' ~ node.name ~ '.changes: found changelog, but ' ~ node.table ~ ' is none; expected a model with materialized: changelog; make one of it, or use cdf') -%}
        {%- endif -%}
        {{ return(relation | string) }}
    {%- elif node.changes == 'cdf' -%}
        {%- do problems.append('wide_table.nodes.' ~ node.name ~ '.changes: found cdf, but ' ~ node.table ~ ' is a changelog, which knows its changes itself; expected changelog; remove it') -%}
    {%- endif -%}
    {{ return(reverse_etl.current(relation, key=input.config.unique_key) | trim) }}
{% endmacro %}
