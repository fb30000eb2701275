{#
  For a Python model that pushes (docs/databricks.md), as its pre_hook: the syncs of the project, in a table beside it. It pushes those of the changelogs that
  it refers to; the others are there because only all of them show whether two own one object. Where it runs there is no artifact of dbt, and one that was
  copied there might tell of other settings than this invocation's. The push drops the table.
    config: {pre_hook: "{{ reverse_etl.hand_over_syncs() }}"}
#}
{% macro hand_over_syncs() %}
    {%- if execute -%}
    {%- set syncs = {'invocation_id': invocation_id, 'command': flags.WHICH, 'target': target.name, 'refers_to': model.depends_on.nodes, 'args': {}, 'nodes': {}, 'exposures': {}, 'tests': []} -%}
    {#- A failed test that the project no longer has blocks no push. -#}
    {%- for unique_id, node in graph.nodes.items() if node.resource_type == 'test' and node.depends_on.nodes | select('in', model.depends_on.nodes) | list -%}
        {%- do syncs.tests.append(unique_id) -%}
    {%- endfor -%}
    {%- for name in ['exclude', 'exclude_resource_types'] if invocation_args_dict.get(name) -%}{%- do syncs.args.update({name: invocation_args_dict[name]}) -%}{%- endfor -%}
    {%- for unique_id, node in graph.nodes.items() if unique_id == 'model.reverse_etl.reverse_etl_ledger' or node.config.get('materialized') == 'changelog' or unique_id in model.depends_on.nodes -%}
        {%- do syncs.nodes.update({unique_id: reverse_etl._handed_over(node, ['unique_id', 'name', 'version', 'alias', 'database', 'schema', 'relation_name', 'original_file_path'], ['materialized', 'unique_key'])}) -%}
    {%- endfor -%}
    {%- set reason = reverse_etl._not_handed_over() -%}
    {%- if reason -%}{%- do log(model.name ~ ': no sync is pushed, because ' ~ reason, info=true) -%}{%- endif -%}
    {#- Under --empty and --sample the changelogs captured nothing, and nothing is sent. -#}
    {%- for unique_id, exposure in graph.exposures.items() if not reason and not reverse_etl._is_partial() -%}
        {%- do syncs.exposures.update({unique_id: reverse_etl._handed_over(exposure, ['unique_id', 'name', 'original_file_path', 'tags', 'depends_on'], [])}) -%}
    {%- endfor -%}
    create or replace table {{ this.incorporate(path={'identifier': this.identifier ~ '__syncs'}, type='table') }} using delta as
    select {{ reverse_etl._string(tojson(syncs)) }} as syncs
    {%- endif -%}
{% endmacro %}


{#
  Why this invocation hands over no sync, or ''. In dbt Cloud jobs of any environment and developers without a target name have the same one, `default`: the rows of a
  schema of their own would go into the destinations of production.
#}
{% macro _not_handed_over() %}
    {%- set switch = env_var('DBT_REVERSE_ETL_PUSH', '') | trim | lower or 'on' -%}
    {%- if switch not in ['on', 'off', 'plan'] -%}
        {{ exceptions.raise_compiler_error("DBT_REVERSE_ETL_PUSH: found '" ~ switch ~ "'; expected off, plan or on; correct or unset it") }}
    {%- elif switch != 'on' -%}
        {{ return('DBT_REVERSE_ETL_PUSH is ' ~ switch ~ (' where dbt runs; to count what would be sent, set it on the cluster' if switch == 'plan')) }}
    {%- endif -%}
    {%- set by = env_var('DBT_CLOUD_INVOCATION_CONTEXT', '') -%}
    {%- if target.name == 'default' and by not in ['', 'prod'] -%}
        {{ return('DBT_CLOUD_INVOCATION_CONTEXT is ' ~ by ~ ' and the target is `default`, which may be that of production; to push from here, give it a target name of its own') }}
    {%- endif -%}
    {{ return('') }}
{% endmacro %}


{# These parts of a node and of its config; of `meta` only our own keys: the others belong to the project, and are not written down. #}
{% macro _handed_over(node, names, config_names) %}
    {%- set config = node.config or {} -%}
    {%- set parts = {'meta': reverse_etl._own_meta(node.get('meta')), 'config': {'meta': reverse_etl._own_meta(config.get('meta'))}} -%}
    {%- for name in names -%}{%- do parts.update({name: node.get(name)}) -%}{%- endfor -%}
    {%- for name in config_names -%}{%- do parts.config.update({name: config.get(name)}) -%}{%- endfor -%}
    {{ return(parts) }}
{% endmacro %}

{% macro _own_meta(meta) %}
    {%- set own = {} -%}
    {%- for name, value in (meta or {}).items() if name in ['reverse_etl', 'reverse_etl_made_for'] -%}{%- do own.update({name: value}) -%}{%- endfor -%}
    {{ return(own) }}
{% endmacro %}
