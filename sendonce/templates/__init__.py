"""Templates of mails: a folder each, filled in with Jinja in a sandbox.

``order_confirmation/`` holds ``subject.txt``, ``body.txt``, ``body.html`` or both, and, if wanted, ``meta.toml`` (from,
headers, lane) and ``sample.json`` or ``sample.toml``. ``order_confirmation/de-AT/`` holds what is different there.
Folders that begin with ``_`` hold what templates share.
"""

from sendonce.errors import TemplateFault
from sendonce.templates.library import RenderedTemplate, Templates

__all__ = ["RenderedTemplate", "TemplateFault", "Templates"]
