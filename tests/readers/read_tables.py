"""Opens exported tables, pictures and pages with Python's own readers, and prints their contents as JSON.

    read_tables.py FILE...

For a .csv: each row. For an .svg: the titles of its frames. For an .html: its data, and every address that it would load.
"""

import csv
import json
import sys
import xml.etree.ElementTree as xml
from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """Collects the data of a page, and the addresses that it refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.data = ""
        self.sources: list[str] = []
        self._in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Detects the start of the data."""
        self._in_data = ("type", "application/json") in attrs
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        """Appends to the data."""
        if self._in_data:
            self.data += data

    def handle_endtag(self, tag: str) -> None:
        """Detects the end of the data."""
        self._in_data = False


def table(path: Path) -> object:
    """Returns all rows, by their columns."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def picture(path: Path) -> object:
    """Returns the titles of all frames."""
    return [title.text for title in xml.parse(path).iter("{http://www.w3.org/2000/svg}title")]


def page(path: Path) -> object:
    """Returns the data and the addresses."""
    reader = Page()
    reader.feed(path.read_text(encoding="utf-8"))
    return {"data": json.loads(reader.data), "sources": reader.sources}


def main() -> None:
    """Reads every file according to its extension."""
    readers = {".csv": table, ".svg": picture, ".html": page}
    paths = [Path(name) for name in sys.argv[1:]]
    print(json.dumps({path.name: readers[path.suffix](path) for path in paths}))


if __name__ == "__main__":
    main()
