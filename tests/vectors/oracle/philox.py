"""Philox4x32-10 and what section 3.8 derives from it. Counter words and outputs are 32-bit; the key is the 64-bit
user seed (low word = key 0)."""

import numpy as np

U = np.uint64
LOW = U(0xFFFFFFFF)
CAM_TAG, NACL_TAG = 0xCA, 0x4E


def philox4x32(c0, c1, c2, c3, key):
    """Four output words for one counter, or for arrays of counters (broadcast)."""
    c = [np.asarray(x, U) for x in np.broadcast_arrays(c0, c1, c2, c3)]
    k0, k1 = int(key) & 0xFFFFFFFF, int(key) >> 32 & 0xFFFFFFFF
    for _ in range(10):
        a, b = U(0xD2511F53) * c[0], U(0xCD9E8D57) * c[2]
        c = [(b >> U(32)) ^ c[1] ^ U(k0), b & LOW, (a >> U(32)) ^ c[3] ^ U(k1), a & LOW]
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return c


def uniform(word):
    """32-bit word -> float in [0,1): (x >> 8) * 2^-24."""
    return (np.asarray(word, U) >> U(8)).astype(np.float64) * 2.0**-24


def cam_uniform(seed, sequence, head, position):
    """The draw of CaM for one evicted entry; head = layer*n_kv + k. First output word."""
    return uniform(philox4x32(sequence, head, position, CAM_TAG, seed)[0])


def nacl_gumbel(seed, head, positions):
    """Gumbel noise of NACL, one number per position. First output word; u = 0 gives -inf."""
    u = uniform(philox4x32(head, positions, 0, NACL_TAG, seed)[0])
    with np.errstate(divide="ignore"):
        return -np.log(-np.log(u))


def words(seed, run, j, k):
    """The word stream of work item (run, j, k): blocks 0, 1, 2, ..., four words each."""
    block = 0
    while True:
        yield from (int(x) for x in philox4x32(run, j, k, block, seed))
        block += 1


def bounded(stream, s):
    """Integer in [0, s): 32-bit multiply-shift with rejection."""
    while True:
        x = next(stream) * s
        if x & 0xFFFFFFFF >= (2**32 - s) % s:
            return x >> 32


def permutation(seed, run, j, k, n):
    """Fisher-Yates from the end: for i = n-1 .. 1 swap i with bounded(i+1)."""
    p, stream = list(range(n)), words(seed, run, j, k)
    for i in range(n - 1, 0, -1):
        r = bounded(stream, i + 1)
        p[i], p[r] = p[r], p[i]
    return p
