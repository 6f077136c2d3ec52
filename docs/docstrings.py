"""Makes the sections that Google's style of docstrings does not know readable on the site."""

import re

import griffe

# `Call arguments: introduction` with an indented block below, likewise `Example:`.
_SECTION = re.compile(
    r"^(Call arguments|Example):[ \t]*([^\n]*(?:\n[^\s][^\n]*)*)\n"
    r"((?:[ \t]+[^\n]*\n?|\n(?=[ \t]))+)",
    re.MULTILINE,
)
_ITEM = re.compile(r"^([\w*, ]+): ", re.MULTILINE)


class Sections(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = _readable(obj.docstring.value)


def _readable(docstring):
    docstring = re.sub(r"^(Args:\n)((?:[ ]+.*\n|\n)+)", _split_names, docstring, flags=re.MULTILINE)
    return _SECTION.sub(_section, docstring)


def _section(match):
    title, introduction, block = match.groups()
    indent = re.match(r"\s*", block)[0]
    block = re.sub(f"^{indent}", "", block.rstrip(), flags=re.MULTILINE)
    if title == "Example":
        return f"**Example:**\n\n```python\n{block}\n```\n"
    items = _ITEM.sub(r"- **`\1`**: ", block)
    return f"**{title}:** {introduction}\n\n{items}\n"


def _split_names(match):
    """`a, b: what` is what griffe wants as two lines."""
    return match[1] + re.sub(
        r"^([ ]+)([\w, ]+,[\w, ]+): (.*(?:\n\1[ ]+.*)*)",
        lambda m: "\n".join(f"{m[1]}{name.strip()}: {m[3]}" for name in m[2].split(",")),
        match[2],
        flags=re.MULTILINE,
    )
