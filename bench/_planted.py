def planted() -> tuple[int, int, int]:
    return 0, 0, 1
