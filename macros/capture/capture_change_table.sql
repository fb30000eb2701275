{#
  A table in which triggers log the keys that changed (see the operation change_table_ddl).
    table     the log: something that the model depends on
    sequence  its column that grows, of whole numbers; rows that commit out of order are covered by `overlap`, a number of sequence values
    key       {column of unique_key: column of the log}; default: the same names
#}
{% macro capture_change_table(capture) %}
    {%- set options = capture.options -%}
    {%- set log = reverse_etl._input(capture, 'table') -%}
    {%- set sequence = reverse_etl._quote(options.sequence) -%}
    {%- set name = 'change_table/' ~ options.table ~ '/' ~ options.sequence -%}
    {%- set before = (capture.since or {}).get(name) -%}
    {%- if before is none -%}{%- do reverse_etl._check_columns_read(capture, log, {'sequence': options.sequence}) -%}{%- endif -%}
    {%- set newest, type = run_query('select cast(max(' ~ sequence ~ ') as string), typeof(max(' ~ sequence ~ ')) from ' ~ log).rows[0].values() -%}
    {#- NUMBER of Oracle comes as decimal(38,10). -#}
    {%- set newest = (newest | string).split('.')[0] if newest is not none else none -%}
    {%- if not modules.re.fullmatch('tinyint|smallint|int|bigint|decimal[(][0-9]+,[0-9]+[)]', type) -%}
        {{ exceptions.raise_compiler_error(
            'changelog ' ~ model.name ~ ": capture.sequence: found '" ~ options.sequence ~ "' of type " ~ type ~ ' in ' ~ log ~ '; expected whole numbers that grow: tinyint, smallint, int, bigint or decimal; '
            ~ 'nothing was captured. Next: name such a column of the log, or take another strategy'
        ) }}
    {%- endif -%}
    {%- set problem = none -%}
    {%- if capture.since and (before is none or newest is not none and newest | int < before | int) -%}
        {%- set problem = 'the sequence of ' ~ options.table ~ (' began anew' if before is not none else ' was not read before') -%}
    {%- endif -%}
    {%- set candidates -%}
        select distinct {{ reverse_etl._key_from(capture.columns.key, options.key) }} from {{ log }}
        where {{ sequence }} > {{ (before | int if before is not none else 0) - options.overlap }}
    {%- endset -%}
    {{ return({
        'problem': problem,
        'positions': {name: newest if newest is not none else (before or '0')},
        'candidates': candidates if capture.since else none,
    }) }}
{% endmacro %}


{#
  Wrong names, which only later captures would read, are refused by the first one. `more`: {option: column of that table}
#}
{% macro _check_columns_read(capture, table, more={}) %}
    {%- set key, where = capture.options.key or {}, 'changelog ' ~ model.name ~ ': capture.' -%}
    {%- set present = reverse_etl._columns_of(table) | map(attribute='name') | list -%}
    {%- set form = 'key: {column of unique_key: column of ' ~ table ~ '}' -%}
    {%- for name in key if name not in capture.columns.key -%}
        {{ exceptions.raise_compiler_error(where ~ "key: found '" ~ name ~ "' as a column of unique_key; expected one of " ~ capture.columns.key | join(', ') ~ '; nothing was captured. Next: correct it') }}
    {%- endfor -%}
    {%- set read = [] -%}
    {%- for name in capture.columns.key -%}{%- do read.append(['key', key.get(name, name)]) -%}{%- endfor -%}
    {%- for option, name in (read + more.items() | list) if name | lower not in present | map('lower') | list -%}
        {{ exceptions.raise_compiler_error(
            where ~ option ~ ": found '" ~ name ~ "'; expected a column of " ~ table ~ ' (' ~ present | join(', ') ~ '); nothing was captured. Next: '
            ~ ('if the column has another name there, add ' ~ form if option == 'key' and not key else 'correct it')
        ) }}
    {%- endfor -%}
{% endmacro %}


{# The key columns, read from a table that may name them otherwise. #}
{% macro _key_from(key, renamed) -%}
    {%- for name in key %}{{ reverse_etl._quote((renamed or {}).get(name, name)) }} as {{ reverse_etl._quote(name) }}{{ ', ' if not loop.last }}{% endfor -%}
{%- endmacro %}
