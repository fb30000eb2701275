{#
  For a Python model that pushes (docs/databricks.md), as its pre_hook: the syncs of the changelogs that it refers to, in a table beside it. Where it runs
  there is no artifact of dbt, and one that was copied there might tell of other settings than this invocation's. The push drops the table.
    config: {pre_hook: "{{ reverse_etl.hand_over_syncs() }}"}
#}
{% macro hand_over_syncs() %}
    {%- if execute -%}
    {%- set syncs = {'invocation_id': invocation_id, 'command': flags.WHICH, 'target': target.name, 'nodes': {}, 'exposures': {}} -%}
    {%- for unique_id, node in graph.nodes.items() if unique_id == 'model.reverse_etl.reverse_etl_ledger' or unique_id in model.depends_on.nodes -%}
        {%- do syncs.nodes.update({unique_id: reverse_etl._parts(node, ['unique_id', 'name', 'alias', 'database', 'schema', 'relation_name', 'original_file_path', 'meta'])}) -%}
        {%- do syncs.nodes[unique_id].update({'config': reverse_etl._parts(node.config, ['materialized', 'unique_key', 'meta'])}) -%}
    {%- endfor -%}
    {#- Under --empty and --sample the changelogs captured nothing, and nothing is sent. -#}
    {%- for unique_id, exposure in graph.exposures.items() if not reverse_etl._is_partial() and exposure.depends_on.nodes | select('in', syncs.nodes) | list -%}
        {%- do syncs.exposures.update({unique_id: reverse_etl._parts(exposure, ['unique_id', 'name', 'original_file_path', 'tags', 'meta', 'depends_on'])}) -%}
        {%- do syncs.exposures[unique_id].update({'config': reverse_etl._parts(exposure.config, ['meta'])}) -%}
    {%- endfor -%}
    create or replace table {{ this.incorporate(path={'identifier': this.identifier ~ '__syncs'}, type='table') }} using delta as
    select {{ reverse_etl._string(tojson(syncs)) }} as syncs
    {%- endif -%}
{% endmacro %}


{% macro _parts(of, names) %}
    {%- set parts = {} -%}
    {%- for name in names -%}{%- do parts.update({name: of.get(name)}) -%}{%- endfor -%}
    {{ return(parts) }}
{% endmacro %}
