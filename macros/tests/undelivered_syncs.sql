{# Syncs with more than `max_rows` undelivered rows; in update_only, rows that the destination does not have are none. #}
{% macro undelivered_syncs(max_rows=0, syncs=none) -%}
{%- set synced = reverse_etl._synced(syncs) -%}
select sync, count(*) as undelivered_rows, count_if(outcome = 'parked') as parked_rows, min(first_failed_at) as undelivered_since
from {{ ref('reverse_etl', 'reverse_etl_undelivered') }}
where {{ reverse_etl._is_one_of(synced) }} and outcome <> 'no_match'
group by sync
having count(*) > {{ max_rows | int }}
{%- endmacro %}
