{#
  The query of a reverse index: which keys of a changelog had which foreign ids. A row of it may hold no longer, which costs a comparison and never a
  row: an index proposes keys, and the diff decides.
#}
{% macro reverse_index(relation, foreign, key=none) -%}
    {%- if execute -%}
        {%- set key = reverse_etl._wide_names(key) or reverse_etl._wide_names(reverse_etl._key_of_node(relation)) -%}
        {%- set head = reverse_etl._head(relation) -%}
        {#- A part of the rows must not count as all up to the newest. -#}
        {%- set uuid = head.changelog_uuid if head is not none and not reverse_etl._is_partial() else '' -%}
        {%- set after = reverse_etl._newest_indexed(this, uuid) if is_incremental() else 0 -%}
        {%- set pruned = run_query('select count(*) from ' ~ relation ~ " where _change = 'pruned' and _snapshot_id > " ~ after).rows[0][0] | int -%}
        {{- reverse_etl._reverse_index_rows(relation, key, reverse_etl._wide_names(foreign), uuid, after, pruned > 0) -}}
    {%- endif -%}
{%- endmacro %}


{#
  Of the snapshots after one: each pair with the newest snapshot that has it.
    uuid    of the changelog: snapshot ids of another one say nothing about this one
    images  full images count, too: some of those snapshots were pruned
#}
{% macro _reverse_index_rows(relation, key, foreign, uuid, after, images=false) -%}
select
    {{ reverse_etl._columns((foreign + key) | unique) }},
    {{ reverse_etl._string(uuid) }} as _changelog_uuid,
    max(_snapshot_id) as _snapshot_id
from {{ relation }}
where _snapshot_id > {{ after }}
    and _change in ('insert', 'update_postimage', '{{ 'checkpoint' if images else 'pruned' }}')
    {#- All within the CASE, or a filter on the foreign ids would skip the files of headers. #}
    and case when _change = 'pruned' then {{ reverse_etl._refuse_pruned('_snapshot_id > ' ~ after) }} else {{ reverse_etl._all_known(foreign) }} end
group by {{ reverse_etl._columns((foreign + key) | unique) }}
{%- endmacro %}

{% macro _all_known(names) -%}
    {% for name in names %}{{ reverse_etl._quote(name) }} is not null{{ ' and ' if not loop.last }}{% endfor %}
{%- endmacro %}

{% macro _newest_indexed(index, uuid) %}
    {{ return(run_query('select coalesce(max(_snapshot_id), 0) from ' ~ index ~ ' where _changelog_uuid = ' ~ reverse_etl._string(uuid)).rows[0][0] | int) }}
{% endmacro %}


{#
  The reverse indexes that hold all rows which the wide table has seen: {node: relation}. The rows between a changed one and the root are as they were at
  the last capture, so no newer index is needed. Of an older one nobody knows what is missing: then the table itself is read, and the run says so.
#}
{% macro _fresh_indexes(plan, since) %}
    {%- set fresh = {} -%}
    {%- for node in plan.nodes.values() if node.reverse_index -%}
        {%- set parent = plan.nodes[node.parent] -%}
        {%- set read = since.get('affected_keys/' ~ parent.table, ':0').split(':') -%}
        {%- set built = load_cached_relation(plan.indexes[node.name]) is not none -%}
        {%- set indexed = reverse_etl._newest_indexed(plan.indexes[node.name], read[0]) if built else 0 -%}
        {%- set missing = 0 if indexed >= read[1] | int else run_query(
            'select count(*) from ' ~ reverse_etl._relation_of(plan.inputs[parent.name]).render() ~ ' where _snapshot_id > ' ~ indexed ~ ' and _snapshot_id <= ' ~ read[1]
            ~ " and _change in ('insert', 'update_postimage', 'pruned') and (_change = 'pruned' or " ~ reverse_etl._all_known(node.pairs | map(attribute='parent') | list) ~ ')'
        ).rows[0][0] | int -%}
        {%- if missing or not built -%}
            {%- do log(model.name ~ ': the reverse index ' ~ node.reverse_index ~ ' lacks ' ~ missing ~ ' rows of ' ~ parent.table ~ ', which is read instead; run the index before the wide table', info=true) -%}
        {%- else -%}
            {%- do fresh.update({node.name: plan.indexes[node.name]}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(fresh) }}
{% endmacro %}


{# Of reverse indexes, the part where the ids lie that changed: {node: behind `from`}. One that is clustered by them is read in few files. #}
{% macro _nearby(plan, changes, indexes) %}
    {%- set nearby = {} -%}
    {%- for name, index in indexes.items() if name in changes -%}
        {%- set whole = reverse_etl._columns_of(index) | selectattr('type', 'in', reverse_etl._whole_numbers()) | map(attribute='name') | list -%}
        {%- set pair = plan.nodes[name].pairs | selectattr('parent', 'in', whole) | first -%}
        {%- if pair -%}
            {%- set ranges = reverse_etl._in_cells(pair.parent, fromjson(run_query(reverse_etl._occupied_cells(changes[name], pair.child)).rows[0][0] or 'null')) -%}
            {%- if ranges -%}{%- do nearby.update({name: '(select * from ' ~ index ~ ' where ' ~ ranges ~ ')'}) -%}{%- endif -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(nearby) }}
{% endmacro %}
