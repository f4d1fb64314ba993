"""A page read by the standard library's parser: its tree must be balanced, and what a person sees is plain text."""

from html.parser import HTMLParser

VOID = {"meta", "link", "img", "input", "br"}


class Page(HTMLParser):
    """A parsed page.

    Attributes:
      tags: how often each element occurs.
      tables: the cells of each table, row by row.
      text: all text outside scripts and styles.
      blocks: the text of each script, with its attributes.
      attributes: (tag, name, value) of all attributes.
    """

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.tables, self.text, self.blocks, self.attributes = {}, [], "", [], []
        self._open = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "script":
            self.blocks.append([dict(attrs), ""])

    def handle_endtag(self, tag):
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data):
        if "script" in self._open:
            self.blocks[-1][1] += data
        elif "style" not in self._open:
            self.text += data
            if self._open and self._open[-1] in ("td", "th"):
                self.tables[-1][-1][-1] += data
