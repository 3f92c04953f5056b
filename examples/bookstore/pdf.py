"""The smallest PDF that shows some lines of text (ISO 32000-1, annex H.3). A real shop has a library for this."""

from __future__ import annotations

import re


def pdf(lines: list[str]) -> bytes:
    """One page of A4. The same lines give the same bytes: no date, no random id."""
    shown = "".join(f"({_escaped(line)}) Tj T* " for line in lines)
    text = f"BT /F1 12 Tf 18 TL 72 770 Td {shown}ET".encode("cp1252", "replace")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 5 0 R /Resources 6 0 R >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(text), text),
        b"<< /Font << /F1 4 0 R >> >>",
    ]
    made, offsets = b"%PDF-1.4\n", []
    for number, one in enumerate(objects, 1):
        offsets.append(len(made))
        made += b"%d 0 obj\n%b\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return made + (
        b"xref\n0 7\n0000000000 65535 f \n%btrailer\n<< /Size 7 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n"
        % (table, len(made))
    )


def _escaped(line: str) -> str:
    return re.sub(r"([()\\])", r"\\\1", line)
