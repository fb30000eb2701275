"""The texts that `dbt-reverse-etl init` writes into a user's dbt project."""

MODEL = """{{{{ config(materialized='changelog', unique_key={key}) }}}}

select * from {{{{ ref('{model}') }}}}
"""

SYNC = """exposures:
  - name: {sync}
    type: application
    owner: {{name: Your team, email: team@example.com}}
    depends_on: [ref('{changelog}')]
    config:
      meta:
        reverse_etl:
          destination: {destination}  # a name under dbt_reverse_etl in profiles.yml
          object: {name}
          mode: mirror  # inserts, updates and deletes
          guards: {{max_deletes: 10%}}
"""

EXAMPLE = """# A first sync. Keep the rows of a model, and say where they go; or let this command write both:
#   dbt-reverse-etl init --model MODEL --key COLUMN
#
# models/MODEL_changelog.sql
#
#   {{ config(materialized='changelog', unique_key='COLUMN') }}
#   select * from {{ ref('MODEL') }}
#
# and in this file, without the signs in front:
#
"""

BLOCK_COMMENT = "# Where syncs deliver, for each dbt target. `plan` sends nothing; put destinations in its place.\n"
