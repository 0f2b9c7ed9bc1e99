"""A module that other modules leave things in."""

ENTRIES: dict[str, object] = {}
