"""Checks Ed25519 signatures (RFC 8032) in plain Python: a device has no cryptography library.

Only checking is here, with numbers that are public anyway, so it does not matter that its time
depends on them. One check takes milliseconds on a workstation, a fraction of a second on a board.

The curve is -x² + y² = 1 + d·x²·y² over the field of p = 2²⁵⁵ - 19. Points are (X, Y, Z, T) with
x = X/Z, y = Y/Z, x·y = T/Z, which can be added without dividing.
"""

from __future__ import annotations

import hashlib

KEY_BYTES = 32
SIGNATURE_BYTES = 64
Point = tuple[int, int, int, int]

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493  # of the base point
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)
_NEUTRAL: Point = (0, 1, 1, 0)


def is_signed(message: bytes, signature: bytes, key: bytes) -> bool:
    """Whether whoever has the private key of `key` signed exactly this message.

    The signature is R and s, and R = s·B - SHA512(R, key, message)·A, with A the point of `key`.
    """
    if len(signature) != SIGNATURE_BYTES or len(key) != KEY_BYTES:
        return False
    public = _point(key)
    s = int.from_bytes(signature[32:], "little")
    if public is None or s >= _ORDER:  # s + order would be a second signature of the same
        return False
    digest = hashlib.sha512(signature[:32] + key + message).digest()
    h = int.from_bytes(digest, "little") % _ORDER
    x, y, z, t = public
    wanted = _sum_of_products(s, _BASE_MULTIPLES, h, _multiples((-x % _P, y, z, -t % _P)))
    return _encoded(wanted) == signature[:32]


def _sum(a: Point, b: Point) -> Point:
    """Section 5.1.4 of the RFC; also right if both are the same point."""
    m = (a[1] - a[0]) * (b[1] - b[0]) % _P
    n = (a[1] + a[0]) * (b[1] + b[0]) % _P
    c = 2 * a[3] * b[3] * _D % _P
    d = 2 * a[2] * b[2] % _P
    e, f, g, h = n - m, d - c, d + c, n + m
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _double(a: Point) -> Point:
    """The same section's doubling, which is cheaper than `_sum`."""
    m, n = a[0] * a[0] % _P, a[1] * a[1] % _P
    h = m + n
    e = h - (a[0] + a[1]) * (a[0] + a[1])
    g = m - n
    f = 2 * a[2] * a[2] + g
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _multiples(point: Point) -> list[Point]:
    """Returns 0 to 15 times the point."""
    found = [_NEUTRAL]
    for _ in range(15):
        found.append(_sum(found[-1], point))
    return found


def _sum_of_products(a: int, of: list[Point], b: int, by: list[Point]) -> Point:
    """Returns a·A + b·B from the multiples of A and B, four bits of both at a time.

    So the doublings, most of the work, are done once for both.
    """
    found = _NEUTRAL
    for shift in range(252, -1, -4):
        for _ in range(4):
            found = _double(found)
        if digit := a >> shift & 15:
            found = _sum(found, of[digit])
        if digit := b >> shift & 15:
            found = _sum(found, by[digit])
    return found


def _encoded(point: Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _point(encoded: bytes) -> Point | None:
    """y in 255 bits, and the lowest bit of x; None if no such point is on the curve."""
    number = int.from_bytes(encoded, "little")
    odd, y = number >> 255, number & (2**255 - 1)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if (x * x - square) % _P or (x == 0 and odd):
        return None
    if x & 1 != odd:
        x = _P - x
    return x, y, 1, x * y % _P


_base = _point((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
assert _base is not None
_BASE_MULTIPLES = _multiples(_base)
