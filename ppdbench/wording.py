"""How messages count things."""


def counted(n: int, what: str) -> str:
    """Return the number and what there is of it: `1 example`, `2 examples`."""
    return f"{n} {what}{'s' * (n != 1)}"
