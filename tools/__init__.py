"""Development programs that write the generated pages of docs/."""
