{#
  Where the keys of candidates lie, as literals: only against these does Delta skip files. Whole numbers alone, and rounded to the cells of a grid, for
  dbt logs its statements, and no value of a row may stand there.
#}

{# The column of the key that ranges and full images go by, or none. #}
{% macro _range_column(columns) %}
    {%- for name in columns.key -%}
        {%- if columns.model | selectattr('name', 'equalto', name) | selectattr('type', 'in', reverse_etl._whole_numbers()) | list -%}{{ return(name) }}{%- endif -%}
    {%- endfor -%}
    {{ return(none) }}
{% endmacro %}

{% macro _whole_numbers() %}{{ return(['tinyint', 'smallint', 'int', 'bigint']) }}{% endmacro %}


{#
  A query of one text: a grid of about 1 000 cells from the least to the greatest value, and those that hold one: {bits: log2 of the width of a cell, cells: their
  numbers}. NULL for a column of another type, which has ways of its own to equal a whole number.
#}
{% macro _occupied_cells(relation, column) -%}
    {%- set numbers = 'select ' ~ reverse_etl._quote(column) ~ ' as _value, try_cast(' ~ reverse_etl._quote(column) ~ ' as bigint) as _number from ' ~ relation %}
    select if(
        typeof(any_value(_value)) in ('{{ reverse_etl._whole_numbers() | join("', '") }}'),
        to_json(named_struct('bits', any_value(_bits), 'cells', collect_set(shiftright(_number, _bits)))), null
    ) from ({{ numbers }})
    cross join (select cast(greatest(10, ceil(log2(cast(max(_number) as double) - min(_number) + 1)) - 10) as int) as _bits from ({{ numbers }}))
{%- endmacro %}


{# The condition that the cells make, of twenty ranges at most: where they are more, the cells get wider. None where the cells are not known. #}
{% macro _in_cells(column, occupied) %}
    {%- if occupied is none -%}{{ return(none) }}{%- endif -%}
    {%- set grid = {'bits': occupied.bits, 'runs': reverse_etl._runs(occupied.cells)} -%}
    {#- A bigint has no more bits. -#}
    {%- for _ in range(64) if grid.runs | length > 20 -%}
        {%- set wider = [] -%}
        {%- for run in grid.runs -%}{%- do wider.extend(range(run.first // 2, run.last // 2 + 1)) -%}{%- endfor -%}
        {%- do grid.update({'bits': grid.bits + 1, 'runs': reverse_etl._runs(wider)}) -%}
    {%- endfor -%}
    {%- set ranges = [] -%}
    {%- for run in grid.runs -%}
        {%- do ranges.append(reverse_etl._quote(column) ~ ' between ' ~ run.first * 2 ** grid.bits ~ ' and ' ~ ((run.last + 1) * 2 ** grid.bits - 1)) -%}
    {%- endfor -%}
    {{ return('(' ~ ranges | join(' or ') ~ ')' if ranges else 'false') }}
{% endmacro %}


{# Numbers as runs of neighbours: [{first, last}, ...] #}
{% macro _runs(numbers) %}
    {%- set runs = [] -%}
    {%- for number in numbers | unique | sort -%}
        {%- if runs and number == runs[-1].last + 1 -%}{%- do runs[-1].update({'last': number}) -%}
        {%- else -%}{%- do runs.append({'first': number, 'last': number}) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return(runs) }}
{% endmacro %}
