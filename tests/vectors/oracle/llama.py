"""Llama forward pass in numpy, from a Hugging Face style directory (config.json, model.safetensors).

dtype float64 is the reference; float32 shows what a single-precision implementation sees."""

import json
import os
import struct
import numpy as np


def read_safetensors(path):
    """name -> array; BF16 and F16 are widened to float32."""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        blob = f.read()
    out = {}
    for name, e in head.items():
        if name == "__metadata__":
            continue
        raw = blob[e["data_offsets"][0] : e["data_offsets"][1]]
        if e["dtype"] == "BF16":
            a = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            a = np.frombuffer(raw, {"F16": "<f2", "F32": "<f4", "F64": "<f8"}[e["dtype"]])
        out[name] = a.reshape(e["shape"])
    return out


def rotate(x, pos, theta):
    """RoPE, half-split pairing (j, j + d/2): turns x[..., n, d] by the angles pos[n] * theta^(-2j/d)."""
    half = x.shape[-1] // 2
    angle = np.multiply.outer(np.asarray(pos, np.float64), theta ** (-np.arange(half) / half))
    c, s = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention_rows(Q, K, rows, gain=None):
    """Causal probabilities P[n_q, len(rows), n] of the given rows (positions) of one layer; Q [n_q,n,d], K
    [n_kv,n,d] after RoPE (1.1, 1.4).
    gain: one factor per row on the logits (AhaKV)."""
    n_q, n, d = Q.shape
    n_kv = K.shape[0]
    rows = np.asarray(rows)
    q = Q[:, rows].reshape(n_kv, n_q // n_kv * len(rows), d)
    z = (q @ K.transpose(0, 2, 1)).reshape(n_q, len(rows), n) * Q.dtype.type(d**-0.5)
    if gain is not None:
        z = z * np.asarray(gain, z.dtype)[:, None]
    return softmax(np.where(np.arange(n) <= rows[:, None], z, -np.inf))


class Layer:
    """What prefill leaves of one layer: Q, K (after RoPE), V. P() gives attention rows."""

    def __init__(self, Q, K, V, theta):
        self.Q, self.K, self.V, self.theta = Q, K, V, theta
        self.n_q, self.n, self.d = Q.shape
        self.n_kv = K.shape[0]
        self._sums = None

    def P(self, rows=None, gain=None):
        return attention_rows(self.Q, self.K, np.arange(self.n) if rows is None else rows, gain)

    def column_sums(self):
        """Sum over all rows of P, averaged over the group: [n_kv, n]. Computed once."""
        if self._sums is None:
            self._sums = self.P().sum(1).reshape(self.n_kv, -1, self.n).mean(1)
        return self._sums


class Llama:
    def __init__(self, path, dtype=np.float64):
        c = json.load(open(os.path.join(path, "config.json")))
        rope = c.get("rope_scaling") or c.get("rope_parameters") or {}
        assert rope.get("rope_type", "default") == "default", "frequency scaling is not needed by the test model"
        self.dtype, self.L, self.eps = dtype, c["num_hidden_layers"], c["rms_norm_eps"]
        self.n_q, self.n_kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.d = c.get("head_dim") or c["hidden_size"] // self.n_q
        self.theta = c.get("rope_theta") or rope["rope_theta"]
        w = {k: v.astype(dtype) for k, v in read_safetensors(os.path.join(path, "model.safetensors")).items()}
        self.embed, self.last_norm = w["model.embed_tokens.weight"], w["model.norm.weight"]
        self.head = self.embed if c.get("tie_word_embeddings") else w["lm_head.weight"]
        self.blocks = [
            {
                k.split(".", 3)[3].removesuffix(".weight").split(".")[-1]: v
                for k, v in w.items()
                if k.startswith(f"model.layers.{i}.")
            }
            for i in range(self.L)
        ]

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(self.eps)) * weight

    def qkv(self, b, x, pos):
        """x [n, hidden] -> Q [n_q,n,d], K, V [n_kv,n,d], RoPE applied to Q and K."""
        y = self.norm(x, b["input_layernorm"])
        q, k, v = (
            (y @ b[name].T).reshape(len(x), -1, self.d).transpose(1, 0, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        return rotate(q, pos, self.theta), rotate(k, pos, self.theta), v

    def finish_block(self, b, x, attended):
        """attended [n_q, n, d]: output projection, residual, MLP."""
        x = x + attended.transpose(1, 0, 2).reshape(len(x), -1) @ b["o_proj"].T
        y = self.norm(x, b["post_attention_layernorm"])
        gate = y @ b["gate_proj"].T
        return x + (gate / (1 + np.exp(-gate)) * (y @ b["up_proj"].T)) @ b["down_proj"].T

    def logits(self, x):
        return self.norm(x, self.last_norm) @ self.head.T

    def prefill(self, ids):
        """Full causal attention (compression never changes it, 1.5). Returns (layers, logits [n, vocab])."""
        x, pos, layers = self.embed[np.asarray(ids)], np.arange(len(ids)), []
        for b in self.blocks:
            layer = Layer(*self.qkv(b, x, pos), self.theta)
            P = layer.P()
            layer._sums = P.sum(1).reshape(self.n_kv, -1, layer.n).mean(1)
            Y = (P.reshape(self.n_kv, -1, layer.n) @ layer.V).reshape(self.n_q, -1, self.d)
            x = self.finish_block(b, x, Y)
            layers.append(layer)
        return layers, self.logits(x)

    def decode(self, token, pos, caches):
        """One token against ragged caches: caches[layer].step(q, k, v, pos) does steps 1-4 of 1.6 and returns the
        attention output [n_q, d]."""
        x = self.embed[token][None]
        for b, cache in zip(self.blocks, caches):
            q, k, v = self.qkv(b, x, [pos])
            x = self.finish_block(b, x, cache.step(q[:, 0], k[:, 0], v[:, 0], pos)[:, None])
        return self.logits(x)[0]
