#!/bin/bash
set -e
cat >table.py <<'END'
def rows(text):
    """The rows of a CSV text, each a list of fields."""
    found, row, field = [], [], ""
    at, line, opened, started = 0, 1, None, False
    while at < len(text):
        c = text[at]
        at += 1
        started = True
        if c == "\n":
            line += 1
        if opened is not None:
            if c != '"':
                field += c
            elif text[at:at + 1] == '"':
                field += c
                at += 1
            else:
                opened = None
        elif c == '"' and not field:
            opened = line
        elif c == ",":
            row.append(field)
            field = ""
        elif c == "\n" or (c == "\r" and text[at:at + 1] == "\n"):
            if c == "\r":
                at += 1
                line += 1
            found.append([*row, field])
            row, field, started = [], "", False
        else:
            field += c
    if opened is not None:
        raise ValueError(f"the quote on line {opened} is not closed")
    if started:
        found.append([*row, field])
    return found
END
