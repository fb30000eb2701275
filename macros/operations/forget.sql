{#
  Drop the position of a sync: the next push, if any, is a first load. The destination is left as it is.
    dbt run-operation forget --args '{sync: crm_contacts}'
#}
{% macro forget(sync) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- do reverse_etl._request('forget', sync) -%}
{% endmacro %}


{# A request stands in the ledger until the next push of the sync carries it out, once. #}
{% macro _request(operation, sync) %}
    {%- do reverse_etl._refuse_other_target() -%}
    {%- set node = graph.nodes['model.reverse_etl.reverse_etl_ledger'] -%}
    {%- set ledger = node.relation_name -%}
    {%- if adapter.get_relation(database=node.database, schema=node.schema, identifier=node.alias) is none -%}
        {{ exceptions.raise_compiler_error(operation ~ ' ' ~ sync ~ ': found no ledger ' ~ ledger ~ '; expected a target that was run. Next: DBT_REVERSE_ETL_PUSH=plan dbt run, which sends nothing, then repeat this') }}
    {%- endif -%}
    {%- set mine = 'exposure.' ~ project_name ~ '.' ~ sync -%}
    {%- set started = "select count(*), count_if(from_json(body, 'exposure string').exposure = " ~ reverse_etl._string(mine) ~ ") from " ~ ledger ~ " where sync = " ~ reverse_etl._string(sync) -%}
    {%- set known, known_here = run_query(started).rows[0] -%}
    {%- set syncs = [] -%}
    {%- for exposure in graph.exposures.values() if (exposure.config.get('meta') or {}).get('reverse_etl') or (exposure.get('meta') or {}).get('reverse_etl') -%}
        {%- do syncs.append(exposure) -%}
    {%- endfor -%}
    {%- set exposures = syncs | selectattr('name', 'equalto', sync) | list -%}
    {%- if not (known if operation == 'forget' else exposures) -%}
        {%- set names = syncs | map(attribute='name') | list -%}
        {%- set what = 'that the ledger does not know' if operation == 'forget' else 'that is no exposure with meta.reverse_etl' -%}
        {{ exceptions.raise_compiler_error("sync: found '" ~ sync ~ "', " ~ what ~ '; expected one of ' ~ (names | join(', ') or '(no such exposures)') ~ '. Next: correct --args, or run it first') }}
    {%- endif -%}
    {%- set said = {'operation': operation, 'invocation_id': invocation_id} -%}
    {#- Another project, or another target of this one, may push by the same name over this ledger. -#}
    {%- if exposures or known_here -%}{%- do said.update({'exposure': mine}) -%}{%- endif -%}
    {%- if exposures -%}{%- do said.update(reverse_etl._position_of(exposures[0])) -%}{%- endif -%}
    {%- set changelog = reverse_etl._changelog_of(exposures[0]) if exposures else none -%}
    {%- if changelog -%}{%- do said.update({'relation': changelog.relation_name}) -%}{%- endif -%}
    {%- if changelog and operation == 'adopt' -%}{%- do said.update(reverse_etl._head_of(changelog)) -%}{%- endif -%}
    {%- do run_query(
        "insert into " ~ ledger ~ " (sync_id, fence, seq, fact, recorded_at, sync, run_id, body) select 'request', 0, 0, 'request', current_timestamp(), "
        ~ reverse_etl._string(sync) ~ ", uuid(), " ~ reverse_etl._string(tojson(said))
    ) -%}
    {%- if exposures -%}
        {%- do log(operation ~ ' ' ~ sync ~ ': the next push carries it out (dbt run, or dbt-reverse-etl push).', info=true) -%}
    {%- else -%}
        {%- do log(operation ~ ' ' ~ sync ~ ': the next push of the sync that takes its place carries it out. If there is none, prune with without_syncs gives up what it keeps.', info=true) -%}
    {%- endif -%}
{% endmacro %}


{# What a rename keeps: the unique id of the exposure under which the ledger keeps the position of a sync, its own or its former one, and where it delivers. #}
{% macro _position_of(exposure) %}
    {%- set meta = (exposure.config.get('meta') or {}).get('reverse_etl') or (exposure.get('meta') or {}).get('reverse_etl') or {} -%}
    {%- set former = meta.get('renamed_from') or exposure.name -%}
    {{ return({'exposure': 'exposure.' ~ (former if '.' in former else exposure.package_name ~ '.' ~ former), 'destination': meta.destination, 'object': meta.object}) }}
{% endmacro %}


{# The node of the changelog of a sync; none: it names none. #}
{% macro _changelog_of(exposure) %}
    {%- for unique_id in exposure.depends_on.nodes if graph.nodes.get(unique_id, {}).get('config', {}).get('materialized') == 'changelog' -%}
        {{ return(graph.nodes[unique_id]) }}
    {%- endfor -%}
{% endmacro %}


{# As it is now, for a run may capture more before the push: {changelog, snapshot}, or {} where there is none yet. #}
{% macro _head_of(changelog) %}
    {%- set head = reverse_etl._found(changelog).head -%}
    {{ return({} if head is none else {'changelog': head.changelog_uuid, 'snapshot': reverse_etl._changed(head)}) }}
{% endmacro %}
