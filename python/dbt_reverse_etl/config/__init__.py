"""What the user wrote: the manifest, run results and profiles.yml, with every mistake at once."""
