#!/bin/bash
set -e
python3 - <<'END'
text = open("todo.py").read()
text = text.replace("""        case _:
""", """        case ["list", "--open"]:
            for number, line in enumerate(read(), 1):
                if line.startswith("[ ] "):
                    print(number, line)
        case ["done", number]:
            lines = read()
            if not number.isdigit() or not 1 <= int(number) <= len(lines):
                print(f"there is no task {number}", file=sys.stderr)
                return 1
            lines[int(number) - 1] = "[x] " + lines[int(number) - 1][4:]
            FILE.write_text("".join(line + "\\n" for line in lines))
        case _:
""")
open("todo.py", "w").write(text)
END
