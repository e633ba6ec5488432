"""The commands in README.md and docs/*.md."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]


def shell_lines(text):
    """Lines of the code blocks that are for a shell; continued ones joined."""
    lines, language = [], None
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("```"):
            language = line[3:].strip() if language is None else None
        elif language in ("", "sh", "bash", "shell", "console"):
            lines.append(line.strip().removeprefix("$ "))
    return [line for line in lines if re.search(r"\biod\b", line)]


def iod_calls(text):
    """The words after ``iod`` of every call in these blocks, also behind pipes and &&."""
    calls = []
    for line in shell_lines(text):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;<>()"):
                start = next((i for i, each in enumerate(words) if "=" not in each), len(words))
                if words[start : start + 1] == ["iod"]:
                    calls.append(words[start + 1 :])
                words = []
            else:
                words.append(word)
    return calls


CALLS = [
    (page.name, words)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for words in iod_calls(page.read_text())
]
