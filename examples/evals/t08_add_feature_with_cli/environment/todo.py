import pathlib
import sys

FILE = pathlib.Path("todo.txt")


def read():
    return FILE.read_text().splitlines() if FILE.exists() else []


def main(args):
    match args:
        case ["add", *words] if words:
            FILE.write_text("".join(line + "\n" for line in [*read(), "[ ] " + " ".join(words)]))
        case ["list"]:
            for number, line in enumerate(read(), 1):
                print(number, line)
        case _:
            print("usage: todo.py add TEXT | list", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
