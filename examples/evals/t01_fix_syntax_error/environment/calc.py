def add(a, b):
    return a + b


def mean(numbers)
    return sum(numbers) / len(numbers)
