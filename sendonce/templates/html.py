"""HTML as mail programs take it, and as text."""

from __future__ import annotations

import re

from css_inline import CSSInliner
from inscriptis import get_text
from inscriptis.model.config import ParserConfig

# Offline: nothing is fetched, and no file is opened. At-rules such as @media cannot be inlined and stay.
_INLINER = CSSInliner(load_remote_stylesheets=False, keep_at_rules=True)
_STYLE = re.compile(r"<style[\s>]", re.IGNORECASE)
_SAME_TWICE = re.compile(r"\[([^\]\s]+)\]\((?:mailto:)?\1\)")


def inlined(html: str) -> str:
    """The rules of ``<style>`` as ``style`` attributes, which mail programs that drop ``<style>`` keep. HTML without
    ``<style>`` stays as it is. Raises css_inline.InlineError for CSS that cannot be read.
    """
    return _INLINER.inline(html) if _STYLE.search(html) else html


def as_text(html: str) -> str:
    """What a reader of plain text gets: layout kept, links as ``[words](address)``, hidden elements left out."""
    text = get_text(html, ParserConfig(display_links=True))
    lines = [line.rstrip() for line in _SAME_TWICE.sub(r"\1", text).split("\n")]
    # A layout of tables leaves runs of empty lines.
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"
