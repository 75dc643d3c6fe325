"""Programs for those who work on tenure: they write the generated pages of docs/."""
