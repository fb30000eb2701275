"""Wide tables: declared join trees, as text, as a picture and as a chain of models."""
