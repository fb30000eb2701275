{#
  Print the DDL of a log table and of the triggers that fill it, for the strategy change_table; run it at the source. It may be run again.
    dbt run-operation change_table_ddl --args '{dialect: postgres, table: shop.orders, key: [id]}'
    dialect  postgres (14 or later), or mysql (8.0.29 or later; MariaDB 10.1.4 or later)
    table    schema.table, or [schema, table] where a name has a dot
    log      name of the log table, in the same schema; default: <table>_reverse_etl_log
#}
{% macro change_table_ddl(dialect, table, key, log=none) %}
    {%- set parts = table.split('.') if table is string else table -%}
    {%- set key = [key] if key is string else key -%}
    {%- if dialect not in ('postgres', 'mysql') -%}
        {%- do reverse_etl._view_refuse('change_table_ddl: dialect', "'" ~ dialect ~ "'", 'postgres or mysql', 'correct --args') -%}
    {%- elif parts | length != 2 or not key -%}
        {%- do reverse_etl._view_refuse('change_table_ddl', 'table ' ~ table ~ ' with key ' ~ key, 'schema.table (or [schema, table]) and at least one key column', "correct --args '{dialect: ..., table: schema.table, key: [id]}'") -%}
    {%- endif -%}
    {%- set names = {'table': parts[1], 'log': log or parts[1] ~ '_reverse_etl_log'} -%}
    {%- for trigger in (['change', 'trunc'] if dialect == 'postgres' else ['insert', 'update', 'delete']) -%}{%- do names.update({trigger: names.log ~ '_' ~ trigger}) -%}{%- endfor -%}
    {%- do reverse_etl._check_ddl_names(dialect, [parts[0]] + names.values() | list + key) -%}
    {%- set quoted = {'key': []} -%}
    {%- for purpose, name in names.items() -%}
        {#- A trigger of Postgres is in the schema of its table, and takes no other. -#}
        {%- set schema = reverse_etl._ddl_quote(dialect, parts[0]) ~ '.' if dialect == 'mysql' or purpose in ('table', 'log') else '' -%}
        {%- do quoted.update({purpose: schema ~ reverse_etl._ddl_quote(dialect, name)}) -%}
    {%- endfor -%}
    {%- for name in key -%}{%- do quoted.key.append(reverse_etl._ddl_quote(dialect, name)) -%}{%- endfor -%}
    {%- do print(reverse_etl['_change_table_' ~ dialect](quoted) | trim) -%}
{% endmacro %}


{# What a server would shorten or change in silence, or what would end a comment. #}
{% macro _check_ddl_names(dialect, names) %}
    {%- for name in names -%}
        {%- set length = name.encode('utf-8') | length if dialect == 'postgres' else name | length -%}
        {%- if name is not string or not name or length > (63 if dialect == 'postgres' else 64) or modules.re.search('[\\x00-\\x1f]', name) -%}
            {%- do reverse_etl._view_refuse('change_table_ddl', "the name '" ~ name ~ "'", 'at most 63 bytes (Postgres) or 64 characters (MySQL), without control characters', 'pass a shorter log=') -%}
        {%- elif name | lower in ('log_sequence', 'log_operation', 'log_at') -%}
            {%- do reverse_etl._view_refuse('change_table_ddl', "a key column '" ~ name ~ "'", 'another name than the columns of the log', 'log the changes of such a table by hand') -%}
        {%- endif -%}
    {%- endfor -%}
{% endmacro %}

{% macro _ddl_quote(dialect, name) -%}
    {%- set mark = '"' if dialect == 'postgres' else '`' -%}
    {{- return(mark ~ name | replace(mark, mark ~ mark) ~ mark) -}}
{%- endmacro %}


{# Key columns, each behind a prefix. #}
{% macro _ddl_key(key, prefix='') -%}
    {%- for name in key %}{{ prefix ~ name }}{{ ', ' if not loop.last }}{% endfor -%}
{%- endmacro %}


{#
  The rights of the one who runs it do the logging, whoever changes the table. What is qualified by nothing is found in pg_catalog alone.
  Keys are compared as text: what the column's collation takes for equal may be two keys elsewhere.
  Earlier builds named the triggers of every log alike, so the last log of a table took them from the others: the old names go where they fill this log.
#}
{% macro _change_table_postgres(names) %}
{%- set body %}
begin
    if tg_op = 'TRUNCATE' then
        insert into {{ names.log }} (log_operation, {{ reverse_etl._ddl_key(names.key) }}) select 'T', {{ reverse_etl._ddl_key(names.key) }} from {{ names.table }};
        return null;
    end if;
    if tg_op = 'DELETE' or tg_op = 'UPDATE' and row({{ reverse_etl._ddl_key(names.key, 'old.') }})::text <> row({{ reverse_etl._ddl_key(names.key, 'new.') }})::text then
        insert into {{ names.log }} (log_operation, {{ reverse_etl._ddl_key(names.key) }}) values (left(tg_op, 1), {{ reverse_etl._ddl_key(names.key, 'old.') }});
    end if;
    if tg_op <> 'DELETE' then
        insert into {{ names.log }} (log_operation, {{ reverse_etl._ddl_key(names.key) }}) values (left(tg_op, 1), {{ reverse_etl._ddl_key(names.key, 'new.') }});
    end if;
    return null;
end
{% endset -%}
{%- set create %}
declare
    former name;
begin
    if to_regclass({{ reverse_etl._ddl_string(names.log) }}) is null then
        create table {{ names.log }} as select {{ reverse_etl._ddl_key(names.key) }} from {{ names.table }} with no data;
        alter table {{ names.log }}
            add column log_sequence bigint generated always as identity primary key,
            add column log_operation text not null,
            add column log_at timestamptz not null default clock_timestamp();
    end if;
    for former in
        select tgname from pg_catalog.pg_trigger where tgname in ('reverse_etl_log', 'reverse_etl_log_truncate')
        and tgrelid = {{ reverse_etl._ddl_string(names.table) }}::regclass and tgfoid = to_regprocedure({{ reverse_etl._ddl_string(names.log ~ '()') }})
    loop
        execute format('drop trigger %I on %s', former, {{ reverse_etl._ddl_string(names.table) }});
    end loop;
end
{% endset -%}
{%- set quote = '$' ~ 'log_' ~ local_md5(body ~ create) ~ '$' -%}
-- Run by the owner of the table. Who changes the table needs no right on the log. Who captures needs:
--   grant select on {{ names.table }}, {{ names.log }} to ...;
begin;
do {{ quote ~ create ~ quote }};
create or replace function {{ names.log }}() returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as {{ quote ~ body ~ quote }};
revoke all on function {{ names.log }}() from public;
create or replace trigger {{ names.change }} after insert or update or delete on {{ names.table }} for each row execute function {{ names.log }}();
create or replace trigger {{ names.trunc }} before truncate on {{ names.table }} for each statement execute function {{ names.log }}();
commit;
{% endmacro %}

{% macro _ddl_string(text) -%} '{{ text | replace("'", "''") }}' {%- endmacro %}


{# An update logs both keys, always: a collation may take them for equal. #}
{% macro _change_table_mysql(names) %}
-- Run by an account with create, insert and select on the schema and trigger on the table: the triggers keep its rights.
-- Who changes the table needs no right on the log; who captures needs select on both. MySQL runs no trigger for truncate table,
-- nor for rows that a foreign key deletes or updates: these are found by full_compare_every.
create table if not exists {{ names.log }} (
    log_sequence bigint not null auto_increment primary key,
    log_operation char(1) not null,
    log_at timestamp(6) not null default current_timestamp(6)
) select {{ reverse_etl._ddl_key(names.key) }} from {{ names.table }} where false;
create trigger if not exists {{ names['insert'] }} after insert on {{ names.table }} for each row
    insert into {{ names.log }} (log_operation, {{ reverse_etl._ddl_key(names.key) }}) values ('I', {{ reverse_etl._ddl_key(names.key, 'new.') }});
create trigger if not exists {{ names['update'] }} after update on {{ names.table }} for each row
    insert into {{ names.log }} (log_operation, {{ reverse_etl._ddl_key(names.key) }}) values ('U', {{ reverse_etl._ddl_key(names.key, 'old.') }}), ('U', {{ reverse_etl._ddl_key(names.key, 'new.') }});
create trigger if not exists {{ names['delete'] }} after delete on {{ names.table }} for each row
    insert into {{ names.log }} (log_operation, {{ reverse_etl._ddl_key(names.key) }}) values ('D', {{ reverse_etl._ddl_key(names.key, 'old.') }});
{% endmacro %}
