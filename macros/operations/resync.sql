{#
  Send everything again: the next push re-sends every row of the head and deletes what this sync delivered and is gone. Nothing else is deleted.
    dbt run-operation resync --args '{sync: crm_contacts}'
#}
{% macro resync(sync) %}
    {%- if not execute -%}{{ return('') }}{%- endif -%}
    {%- do reverse_etl._request('resync', sync) -%}
{% endmacro %}
