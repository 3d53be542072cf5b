from store import get_data


def lines():
    return [f"{name}: {points}" for name, points in get_data(2)]


if __name__ == "__main__":
    print("\n".join(lines()))
