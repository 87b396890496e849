"""Pages that tests read."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "line", "polyline", "link", "br", "input", "hr"}


class Page(HTMLParser):
    """Collects tags and text, and fails on tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += " " + " ".join(data.split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def assert_self_contained(text: str) -> None:
    """Nothing in the page makes a browser fetch something."""
    for tag, attrs in Page(text).tags:
        assert tag not in {"script", "link", "iframe"}
        for name in ("src", "href", "srcset"):
            assert attrs.get(name) is None or str(attrs[name]).startswith("data:")
    assert not re.search(r"https?://|url\(|@import", text)
