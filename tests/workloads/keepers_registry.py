"""A module in which other modules keep objects."""

ENTRIES: dict[str, object] = {}
