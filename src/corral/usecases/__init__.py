"""Load, ask the domain, save, record: one file a noun."""
