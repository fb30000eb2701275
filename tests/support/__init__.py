"""What tests share; nothing here is collected."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the repository
