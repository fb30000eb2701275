-- Every version of every customer, with the time in which it held (SCD type 2).
{{ config(materialized='view') }}

select * from {{ reverse_etl.scd2(ref('customers_changelog')) }}
