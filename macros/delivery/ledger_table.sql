{# The ledger's table: the materialization and the runner make it with the same text, whoever comes first. #}
{% macro _create_ledger(relation, query, location='', comment='') -%}
create table if not exists {{ relation }}
using delta
partitioned by (sync_id)
{{ location }}
{{ comment }}
tblproperties ('delta.checkpointInterval' = '100', 'delta.autoOptimize.autoCompact' = 'true')
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
