"""Text of unknown origin, made safe for a terminal and a log."""

from __future__ import annotations

from typing import Any

LONGEST = 2000  # characters of one text; a name or a sentence of ours has far fewer


def printable(text: str, longest: int = LONGEST) -> str:
    r"""Returns the text in one line, cut, with an escape in place of what does not print.

    Control characters could command a terminal, a line break could forge a line of a log, and
    overrides of the direction could show a text in another order than it has. They are written as
    in Python: `\x1b`, `\n`, `\u202e`.
    """
    cut = text if len(text) <= longest else text[:longest] + "…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else _escaped(c) for c in cut)


def printable_inside(value: Any) -> Any:
    """Returns the value with every text in it made printable; keys of mappings are text too."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): printable_inside(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_inside(item) for item in value]
    return value


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
