{# The ledger's table: the materialization and the runner make it with the same text, whoever comes first. #}
{% macro _create_ledger(relation, query, location='', comment='') -%}
create table if not exists {{ relation }}
using delta
partitioned by (sync_id)
{{ location }}
{{ comment }}
{# Object stores list the whole log at each look, and a push writes two commits. #}
tblproperties ('delta.checkpointInterval' = '100', 'delta.autoOptimize.autoCompact' = 'true', 'delta.logRetentionDuration' = 'interval 7 days')
as {{ query }}
{%- endmacro %}


{# One row for each fact. `body` is its JSON; the views over the ledger take it apart. #}
{% macro _ledger_columns() -%}
select
    cast(null as string) as sync_id,
    cast(null as bigint) as fence,
    cast(null as bigint) as seq,
    cast(null as string) as fact,
    cast(null as timestamp) as recorded_at,
    cast(null as string) as sync,
    cast(null as string) as run_id,
    cast(null as string) as body
where false
{%- endmacro %}


{#
  What the ledger says beside the facts of the newest runs, however many there were: one row for each sync that ever ran, with its newest fence and every name
  that it had, and with the requests that its runs carried out (a run of its own has an id of 32 digits, a request that of its `uuid()`); one for each request;
  and of the records that belong to no run the newest one of each of these names.
#}
{% macro ledger_overview(ledger, names) -%}
{%- set columns = 'sync_id, fence, sync, run_id, recorded_at' %}
select fact, newest.*, names, carried_out
from (
    {# Without `body`, which restates the spec and the undelivered rows of every run that there was. #}
    select fact, max_by(struct({{ columns }}, cast(null as string) as body), struct(fence, seq, recorded_at)) as newest,
        collect_set(sync) as names, collect_set(if(length(run_id) <> 32, run_id, null)) as carried_out
    from {{ ledger }}
    where fact = 'run_started'
    group by fact, sync_id
    union all
    select fact, max_by(struct({{ columns }}, body), struct(fence, seq, recorded_at)) as newest, array(), array()
    from {{ ledger }}
    where sync_id in ('request', 'tests', 'push_refused', 'alert') and (fact = 'request' or sync in (
        {%- for name in names %}{{ reverse_etl._string(name) }}{{ ', ' if not loop.last }}{% endfor %})
        or fact = 'tests' and {{ reverse_etl._plain_relation('sync') }} in (
        {%- for name in names %}{{ reverse_etl._plain_relation(reverse_etl._string(name)) }}{{ ', ' if not loop.last }}{% endfor %}))
    group by fact, case fact
        when 'request' then run_id
        when 'tests' then {{ reverse_etl._plain_relation('sync') }}
        else sync || ' ' || {{ reverse_etl._plain_relation("coalesce(get_json_object(body, '$.relation'), '')") }}
    end
)
{%- endmacro %}


{# SQL of the name of a relation that stays the same if dbt's `quoting` changes. #}
{% macro _plain_relation(name) -%}lower(translate({{ name }}, '`"', '')){%- endmacro %}


{#
  In each model of the package, so that dbt compiles it before it writes. dbt applies the `models:` of the user's project last, above config() of a model
  in a package: a `+materialized: table` at its top would replace the ledger in each run. The runner
  renders the models, too, where there is no `execute`.
#}
{% macro _refuse_other_materialization(expected) -%}
    {%- if execute is defined and execute and model.config.materialized not in expected -%}
        {{ exceptions.raise_compiler_error(
            'dbt_project.yml: models: found materialized: ' ~ model.config.materialized ~ ' for ' ~ model.name ~ '; expected ' ~ expected[0] ~ ', for another one can lose what was delivered, or show it as it was. '
            ~ 'Next: set +materialized below the name of your project, or add below models: {reverse_etl: {+materialized: ledger_view, reverse_etl_ledger: {+materialized: ledger}}}'
        ) }}
    {%- endif -%}
{%- endmacro %}
