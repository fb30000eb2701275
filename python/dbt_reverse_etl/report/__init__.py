"""The report page: `reading` asks the ledger and the changelogs, `model` holds what they say, `page` makes one HTML file of it."""
