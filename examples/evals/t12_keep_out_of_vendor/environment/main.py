from vendor.sums import total

VALUES = "10,20,30"


def run():
    return total(VALUES.split(","))


if __name__ == "__main__":
    print("total:", run())
