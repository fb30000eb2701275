{#
  The query of a reverse index: which keys of a changelog had which foreign ids. A row of it may hold no longer, which costs a comparison and never a
  row: an index proposes keys, and the diff decides.
#}
{% macro reverse_index(relation, foreign, key=none) -%}
    {%- if execute -%}
        {%- set key = reverse_etl._wide_names(key) or reverse_etl._wide_names(reverse_etl._key_of_node(relation)) -%}
        {%- set head = reverse_etl._head(relation) -%}
        {#- A part of the rows must not count as all up to the newest. -#}
        {%- set position = reverse_etl._changelog_position(head) if head is not none and not reverse_etl._is_partial() else '' -%}
        {%- set after = reverse_etl._newest_indexed(this, relation, position) if is_incremental() else 0 -%}
        {%- set pruned = run_query('select count(*) from ' ~ relation ~ " where _change = 'pruned' and _snapshot_id > " ~ after).rows[0][0] | int -%}
        {{- reverse_etl._reverse_index_rows(relation, key, reverse_etl._wide_names(foreign), position, after, pruned > 0) -}}
    {%- endif -%}
{%- endmacro %}


{#
  Of the snapshots after one: each pair with the newest snapshot that has it.
    position  of the changelog: snapshot ids of another one, or of a copy that was put back, say nothing about this one
    images    full images count, too: some of those snapshots were pruned
#}
{% macro _reverse_index_rows(relation, key, foreign, position, after, images=false) -%}
select
    {{ reverse_etl._columns((foreign + key) | unique) }},
    {{ reverse_etl._string(position) }} as _changelog_uuid,
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

{#
  The newest snapshot of a changelog up to which an index holds all pairs. Each run of the index leaves the position up to which it has read in the rows that it
  wrote (`_changelog_uuid`); one counts if the changelog still has that snapshot of that capture.
    position  how far the changelog has come; without one nothing counts
#}
{% macro _newest_indexed(index, table, position) %}
    {%- if not position -%}{{ return(0) }}{%- endif -%}
    {%- set indexed = run_query(
        'select _changelog_uuid from ' ~ index ~ ' where startswith(_changelog_uuid, ' ~ reverse_etl._string(position.split(':')[0] ~ ':')
        ~ ") group by 1 order by cast(split_part(_changelog_uuid, ':', 2) as bigint) desc limit 100"
    ).rows | map(attribute=0) | list -%}
    {%- if not indexed -%}{{ return(0) }}{%- endif -%}
    {%- if indexed[0] == position -%}{{ return(position.split(':')[1] | int) }}{%- endif -%}
    {#- Their numbers first, so that files without these snapshots are skipped. -#}
    {%- set ids, texts = [], [] -%}
    {%- for one in indexed -%}{%- do ids.append(one.split(':')[1]) -%}{%- do texts.append(reverse_etl._string(one)) -%}{%- endfor -%}
    {{ return(run_query(
        'select coalesce(max(_snapshot_id), 0) from ' ~ table ~ ' where _snapshot_id in (' ~ ids | join(', ') ~ ") and _change in ('snapshot', 'pruned')"
        ~ " and concat_ws(':', _header.changelog_uuid, _snapshot_id, _header.capture_uuid) in (" ~ texts | join(', ') ~ ')'
    ).rows[0][0] | int) }}
{% endmacro %}


{#
  The reverse indexes that hold all rows which the wide table has seen: {node: relation}. The rows between a changed one and the root are as they were at
  the last capture, so no newer index is needed. Of an older one nobody knows what is missing: then the table itself is read, and the run says so.
#}
{% macro _fresh_indexes(plan, since, positions) %}
    {%- set fresh = {} -%}
    {%- for node in plan.nodes.values() if node.reverse_index -%}
        {%- set parent = plan.nodes[node.parent] -%}
        {%- set read = since.get('affected_keys/' ~ parent.table, ':0').split(':') -%}
        {%- set built = load_cached_relation(plan.indexes[node.name]) is not none -%}
        {%- set table = reverse_etl._relation_of(plan.inputs[parent.name]).render() -%}
        {%- set indexed = reverse_etl._newest_indexed(plan.indexes[node.name], table, positions['affected_keys/' ~ parent.table]) if built else 0 -%}
        {%- set missing = 0 if indexed >= read[1] | int else run_query(
            'select count(*) from ' ~ table ~ ' where _snapshot_id > ' ~ indexed ~ ' and _snapshot_id <= ' ~ read[1]
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
