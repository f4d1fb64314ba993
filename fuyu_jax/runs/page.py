"""Reports as one HTML page that opens offline: charts, data, styles and scripts are all inside.

Text reaches the page in two ways only: through Jinja, which escapes all of it, and as JSON in a block of data whose
angle brackets and ampersands are written as escapes, read by a script that sets text and never markup. Beyond that the
page's own policy (Content-Security-Policy) lets no script run but the ones it names by their hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fuyu_jax.runs.document import Document, pieces

TEMPLATES = Path(__file__).parent / "templates"
STYLES, TABLES, PLAYER = "page.css", "tables.js", "player.js"
# What could end a script block or begin a comment in one, and line ends that only JavaScript knows.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render(document: Document, folder: Path, episodes: Sequence[Mapping[str, Any]] = ()) -> str:
    """The report as a page.

    Args:
      document: what it says.
      folder: where its images are.
      episodes: records that the page can step through; without any it has no player.
    """
    environment = Environment(
        loader=PackageLoader("fuyu_jax.runs"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"pieces": pieces, "image": lambda path: _data_url(folder / path)}
    styles = _asset(STYLES)
    scripts = [_asset(name) for name in ([TABLES, PLAYER] if episodes else [TABLES])]
    return environment.get_template("page.html.j2").render(
        document=document,
        episodes=to_script_json(episodes) if episodes else None,
        styles=styles,
        scripts=scripts,
        style_hash=_hash(styles),
        script_hashes=[_hash(script) for script in scripts],
    )


def to_script_json(data: Any) -> str:
    """Plain data as JSON that may stand in a script block of a page, whatever its strings say.

    Raises:
      ValueError: where a number is NaN or infinite.
    """
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return "".join(_UNSAFE.get(character, character) for character in text)


def _asset(name: str) -> str:
    return "\n" + (TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of a script or style, for the page's policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data_url(image: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(image.read_bytes()).decode()
