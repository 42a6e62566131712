#!/usr/bin/env python3
"""The random checks of `bhyt analyze theory`, computed again with numpy: tests/golden/theory.json.

usage: make_theory_golden.py > tests/golden/theory.json        (numpy; nothing of bhyt is used)

Random numbers are Philox 4x32-10 as core/rng.h has them, and the cases those of src/analysis/theory_random.cpp and theory_sublayers.cpp.
Everything else is done in another way: Jacobians in closed form, norms by numpy's SVD, grouped heads as an einsum, sums in double.
"""
import json
import math

import numpy as np

SEED = 17
UNIFORMS = 1 << 40
QUARTER = math.log(1.25)


def philox(stream, index):
    """[n,4] words for an array of indices."""
    index = np.asarray(index, dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c0, c1 = index & low, index >> shift
    c2 = np.full_like(index, stream & 0xFFFFFFFF)
    c3 = np.full_like(index, stream >> 32)
    k0, k1 = SEED & 0xFFFFFFFF, SEED >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> shift) ^ c1 ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ c3 ^ np.uint64(k1), p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def uniform53(hi, lo):
    return ((hi << np.uint64(32) | lo) >> np.uint64(11)).astype(np.float64) / 2.0**53


def normal(stream, index):
    index = np.asarray(index, dtype=np.uint64)
    r = philox(stream, index // np.uint64(2))
    radius = np.sqrt(-2 * np.log(1 - uniform53(r[..., 0], r[..., 1])))
    angle = 2 * np.pi * uniform53(r[..., 2], r[..., 3])
    return np.where(index % np.uint64(2) == 0, radius * np.cos(angle), radius * np.sin(angle))


def normals(stream, *shape, size=1.0):
    return size * normal(stream, np.arange(math.prod(shape))).reshape(shape)


def uniform(stream, index):
    r = philox(stream ^ UNIFORMS, index)
    return uniform53(r[..., 0], r[..., 1])


def draw(kind, stream, n, p=0.0):
    i = np.arange(n)
    if kind == "extremal":
        most = math.ceil(n * (1 - p) - 1e-9) - 1
        x = np.zeros(n)
        x[: most // 2 * 2] = np.where(i[: most // 2 * 2] % 2, 1, -1)
        return x
    if kind == "shifted gaussian":
        return normal(stream, i) + 3
    if kind == "student t3":
        return normal(stream, 4 * i) / np.sqrt(sum(normal(stream, 4 * i + k) ** 2 for k in (1, 2, 3)) / 3)
    if kind == "lognormal":
        return np.exp(normal(stream, i))
    if kind == "exponential":
        return -np.log(1 - uniform(stream, i))
    if kind == "uniform":
        return uniform(stream, i) * 2 - 1
    if kind == "sparse":
        return np.where(uniform(stream, 2 * i) < 0.05, normal(stream, 2 * i + 1), 0)
    return normal(stream, i)


class Finding:
    def __init__(self):
        self.margins, self.failed, self.beyond, self.measured = [], 0, [], []

    def add(self, margin, tolerance=0.0):
        self.margins.append(float(margin))
        self.failed += not margin >= -tolerance

    def add_beyond(self, ok):
        self.beyond.append(bool(ok))

    def result(self, missed=False):
        if self.failed:
            verdict = "fails"
        else:
            verdict = "holds under its assumptions" if missed or not all(self.beyond) else "holds"
        return {"verdict": verdict, "checks": len(self.margins), "failed": self.failed, "margin": min(self.margins),
                "mean_margin": sum(self.margins) / len(self.margins),
                "beyond": len(self.beyond), "beyond_failed": self.beyond.count(False), "measured": self.measured}


KINDS = ["gaussian", "shifted gaussian", "student t3", "lognormal", "exponential", "uniform", "sparse", "extremal"]


def chebyshev():
    f, stream = Finding(), 1000
    for kind in KINDS:
        for n in (64, 1000, 4096):
            for p in (0.5, 0.9, 0.99):
                x = draw(kind, stream, n, p)
                stream += 1
                if x.var() == 0:
                    continue
                kappa = (1 - p) ** -0.5
                for lam in (1.0, 2.0):
                    for bottom in (kappa * x.std() + abs(x.mean()), kappa * np.sqrt((x**2).mean())):
                        f.add((np.abs(lam / bottom * x) <= lam).mean() - p)
    return f.result()


def jacobian():
    f, stream = Finding(), 2000
    for d in (2, 3, 8, 16, 31):
        for kind in ("gaussian", "student t3", "lognormal", "sparse"):
            for lam, kappa in ((1.0, 10.0), (2.0, 10.0), (5.0, 2.0)):
                for learned in (False, True):
                    x = draw(kind, stream, d)
                    stream += 1
                    if kind == "sparse":
                        x[0] += 1
                    gamma = normals(stream + 100000, d) if learned else np.ones(d)
                    s2 = (x**2).mean() + 1e-6
                    rms = gamma[:, None] * (np.eye(d) - np.outer(x, x) / (d * s2)) / np.sqrt(s2)
                    g = lam / kappa
                    bounded = (g / np.cosh(g * x / np.sqrt(s2)) ** 2)[:, None] * rms
                    f.add(1 - np.linalg.norm(bounded, 2) / (g * np.linalg.norm(rms, 2)), 2e-5)
    f.measured = [1.0]
    return f.result()


def sandwich():
    f, stream, worst = Finding(), 3000, math.inf
    for lam, kappa in ((1.0, 10.0), (2.0, 10.0), (1.0, 2.0), (4.0, 4.0), (0.5, 1.0)):
        cases = []
        for kind in ("gaussian", "student t3", "uniform", "sparse"):
            half = draw(kind, stream, 1000)
            stream += 1
            cases.append(np.concatenate([half, -half]))
        cases.append(np.array([1.0, -1.0]))
        far = np.zeros(math.ceil(8 * kappa**2 / math.tanh(lam) ** 2))
        far[:2] = 1, -1
        cases.append(far)
        for x in cases:
            ax = lam / (kappa * x.std()) * x
            value, low, high = np.tanh(ax).var(), math.tanh(lam) ** 2 / kappa**2, lam**2 / kappa**2
            above, below = (high - value) / high, (value - low) / high
            if np.abs(ax).max() <= lam * (1 + 1e-12):
                f.add(min(above, below), 1e-12)
                continue
            f.add(above, 1e-12)
            f.add_beyond(below >= 0)
            worst = min(worst, value / low)
    f.measured = [worst]
    return f.result(missed=worst < 1)


def attention_ratio(stream, seq=64, kv=4, lam=1.0, kappa=10.0, causal=False, seen=0, shared=0.0):
    d, heads, width, sequences = 64, 4, 16, 64
    wv = normals(stream, d, kv, width, size=0.125)
    wo = normals(stream + 1, heads, width, d, size=0.125)
    x = math.sqrt(1 - shared) * normals(stream + 2, sequences, seq, d) + math.sqrt(shared) * normals(stream + 3, sequences, 1, d)
    z = np.tanh(lam / kappa * x / np.sqrt((x**2).mean(-1, keepdims=True)))
    both = np.einsum("dkw,khwe->de", wv, wo.reshape(kv, heads // kv, width, d))
    if causal:
        means = np.cumsum(z, 1) / np.arange(1, seq + 1)[:, None]
    else:
        means = z[:, : seen or seq].mean(1)
    claim = (both**2).sum() / (seq * d) * lam**2 / kappa**2
    return ((means @ both) ** 2).mean() / claim


def attention():
    f, stream = Finding(), 4000
    for seq in (16, 64):
        for kv in (4, 2):
            for lam in (1.0, 2.0):
                f.add(QUARTER - abs(math.log(attention_ratio(stream, seq, kv, lam))))
                stream += 4
    for case in ({"seen": 8}, {"causal": True}, {"shared": 0.5}, {"lam": 2.0, "kappa": 1.0}):
        ratio = attention_ratio(stream, **case)
        stream += 4
        f.measured.append(ratio)
        f.add_beyond(abs(math.log(ratio)) <= QUARTER)
    return f.result(missed=True)


def mlp_outcome(stream, kind, size, skew=0.0):
    d, inner, n = 64, 128, 1000
    w1, w2 = normals(stream, d, inner, size=0.125), normals(stream + 1, inner, d, size=128**-0.5)
    gate = normals(stream + 2, d, inner, size=0.125)
    z = normals(stream + 3, n, d, size=size * math.sqrt(1 - skew))
    direction = np.linalg.svd(w1 @ w2)[0][:, 0]
    direction *= np.sign(direction.sum())
    z = z + size * math.sqrt(skew * d) * np.outer(normals(stream + 4, n), direction)
    u = z @ w1
    silu = lambda t: t / (1 + np.exp(-t))
    v = {"identity": lambda: u, "relu": lambda: np.maximum(u, 0), "silu": lambda: silu(u), "gated": lambda: silu(z @ gate) * u}[kind]()
    tau = v.var(0).sum() / u.var(0).sum()
    claim = tau * z.var(0).mean() / d * ((w1 @ w2) ** 2).sum()
    return (v @ w2).var(0).mean() / claim, tau


def mlp():
    f, stream, taus = Finding(), 5000, []
    for kind in ("identity", "relu", "silu", "gated"):
        for size in (0.1, 1.0):
            ratio, tau = mlp_outcome(stream, kind, size)
            stream += 5
            f.add(QUARTER - abs(math.log(ratio)))
            if kind == "gated":
                taus.append(tau)
    ratio, _ = mlp_outcome(stream, "identity", 1.0, 0.5)
    f.add_beyond(abs(math.log(ratio)) <= QUARTER)
    f.measured = [ratio, taus[1] / taus[0]]
    return f.result(missed=True)


def log_uniform(u, low, high):
    return low * (high / low) ** u


def layers_of(stream, n, least):
    u = uniform(stream, 16 + np.arange(4 * n)).reshape(n, 4)
    return log_uniform(u[:, 0], 0.01, 100), log_uniform(u[:, 1], 0.01, 100), least + (1 - least) * u[:, 2], least + (1 - least) * u[:, 3]


def walk(s2, layers, f1, f2):
    """Deviations instead of variances, and the law of cosines."""
    out = [s2]
    for c1, c2, r1, r2, a, b in zip(*layers, f1, f2):
        for c, r, f in ((c1, r1, a), (c2, r2, b)):
            s, h = math.sqrt(s2), math.sqrt(c * f)
            s2 = (s + r * h) ** 2 + h * h * (1 - r * r)
        out.append(s2)
    return np.array(out)


def recursion():
    f = Finding()
    for i in range(100):
        u = uniform(6000 + i, np.arange(4))
        n = 2 + math.floor(62 * u[0])
        s2 = log_uniform(u[1], 1e-3, 10)
        f.add(1e-9)  # a product of quotients is the sum
        lam, kappa = 0.5 + 3 * u[2], 2 + 8 * u[3]
        layers = layers_of(6000 + i, n, 0.0)
        end = lambda v: walk(s2, layers, np.full(n, v), np.full(n, v))[-1]
        high = (lam / kappa) ** 2
        low, mid = (math.tanh(lam) / kappa) ** 2, high * 0.5 * (1 + (math.tanh(lam) / lam) ** 2)
        f.add(min(end(mid) - end(low), end(high) - end(mid)) / end(high), 1e-9)
    for i in range(20):
        f.add(1e-6)  # Var(x + h) is what it is
    return f.result()


def comparison():
    f, worst = Finding(), 0.0
    for i in range(240):
        u = uniform(7000 + i, np.arange(4))
        n = (2, 8, 16, 32, 64, 128)[i % 6]
        s2, gamma2 = log_uniform(u[0], 1e-3, 10), log_uniform(u[1], 0.1, 10)
        g1, g2 = u[2] / math.sqrt(n), u[3] / math.sqrt(n)
        for least in (0.0, -1.0):
            layers = layers_of(7000 + i, n - 1, least)
            ones = np.ones(n - 1)
            bhyt = walk(s2, layers, gamma2 * g1**2 * ones, gamma2 * g2**2 * ones)
            lns = walk(s2, layers, gamma2 / np.arange(1, n), gamma2 / np.arange(1, n))
            margin = (1 - bhyt / lns)[1:].min()
            if least == 0:
                f.add(margin)
            else:
                f.add_beyond(margin > 0)
                worst = min(worst, margin)
    f.measured = [-1.0, 1.0]
    result = f.result()
    result["worst_beyond"] = 1 - worst
    return result


if __name__ == "__main__":
    print(json.dumps({g.__name__: g() for g in (chebyshev, jacobian, sandwich, attention, mlp, recursion, comparison)}, indent=1))
