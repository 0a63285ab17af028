"""What the demo agent says and asks, apart from what it finds."""

from __future__ import annotations

FIRST_NOTE = "The demo agent wrote this, because somebody allowed it.\n"
QUESTIONS = [
    {
        "question": "Which colour should the button have?",
        "header": "Colour",
        "multiSelect": False,
        "options": [
            {"label": "Blue", "description": "calm, like most of the web"},
            {"label": "Orange", "description": "hard to overlook"},
        ],
    }
]
MARKDOWN = """\
# A heading

Some **bold** and *slanted* words, `code`, and a [link](https://example.org/).

- a list
- with two points

| what | how much |
|---|---:|
| rows | 2 |
| columns | 2 |

```python
def answer() -> int:
    return 6 * 7  # * and _ stay as they are
```

> A quotation, and that is all.
"""
HINT = (
    "Ask me to run a command, to edit a file, or say “ask me something”: you will be asked first, as the real ones ask "
    "you. Further words while I work are taken in, and an interrupt ends the turn, not the conversation.\n"
)
