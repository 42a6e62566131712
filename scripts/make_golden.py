#!/usr/bin/env python3
"""Writes tests/golden/models: small checkpoints with logits, loss, gradients, c_attn and a greedy continuation in double precision.

An independent reading of the method in PyTorch, one function per formula, gradients by autograd. Nothing is shared with the C++ program or
with the modelling code that checkpoints carry: where all three agree, the formula is right.

usage: make_golden.py [--out tests/golden/models] [--only NAME ...]      (needs torch and safetensors)
"""
import argparse
import json
import math
import pathlib
import zlib

import torch
from safetensors.torch import save_file

EPS_BHYT = 1e-6
BHYT_FAMILY = ("bhyt", "bhyt_exact", "bhyt_star")
APPROXIMATED = ("bhyt", "rmsnorm_approx")


# --- what a case is ------------------------------------------------------------------------------------------------------------------

class Norm:
    """The settled options of the norm family; layers count from 1 here."""

    def __init__(self, method="bhyt", p=None, kappa=None, lam=(2.0, 1.0), lambda_last=0.0, learn_lambda=True, kappa_schedule="constant",
                 exact=(), correction="none", gamma_in_constant=False, stop_gradient=False, aux_loss=0.0, calibration=None, layers=None,
                 elsewhere="rmsnorm", gain="one", depth_gain="none", depth_factor="none", seq_len=16):
        self.method, self.lam, self.lambda_last, self.learn_lambda = method, lam, lambda_last, learn_lambda
        self.kappa = (1 - p) ** -0.5 if p is not None else 10.0 if kappa is None else kappa
        self.kappa_schedule, self.exact, self.correction = kappa_schedule, set(exact), correction
        self.gamma_in_constant, self.stop_gradient, self.aux_loss = gamma_in_constant, stop_gradient, aux_loss
        self.calibration, self.layers, self.elsewhere = calibration, layers, elsewhere
        self.gain, self.depth_gain, self.depth_factor, self.seq_len = gain, depth_gain, depth_factor, seq_len

    def method_at(self, layer):
        inside = self.layers is None or self.layers[0] <= layer <= self.layers[1]
        return self.method if inside else self.elsewhere

    def kappa_at(self, layer):
        return {"constant": self.kappa, "decay": self.kappa / math.sqrt(layer), "grow": self.kappa * math.sqrt(layer),
                "mild_grow": self.kappa * layer ** 0.25}[self.kappa_schedule]

    def out_factor(self, method, layer, place):
        """The constant factor outside the map: κ/λ with the configured λ, 1/√layer; of the blocks' two sites only."""
        if place not in ("attention", "mlp"):
            return 1.0
        factor = 1.0
        if self.gain == "fixed_unit" and method in BHYT_FAMILY:
            factor *= self.kappa_at(layer) / self.lam[0 if place == "attention" else 1]
        if self.depth_factor == "inv_sqrt":
            factor /= math.sqrt(layer)
        return factor

    def last_method(self):
        if self.method in BHYT_FAMILY and self.lambda_last > 0:
            return "bhyt_exact"
        return self.method if self.method in ("layernorm", "dyt", "derf", "seednorm") else "rmsnorm"


class Shape:
    def __init__(self, d=24, layers=3, heads=3, kv=1, head_dim=8, mlp=18, vocab=37, tied=False, theta=10000.0, llama3=None, eps=1e-5,
                 embedding_scale="none"):
        self.d, self.layers, self.heads, self.kv, self.head_dim, self.mlp, self.vocab, self.tied = d, layers, heads, kv, head_dim, mlp, vocab, tied
        self.theta, self.llama3, self.eps, self.embedding_scale = theta, llama3, eps, embedding_scale


# --- parameters ----------------------------------------------------------------------------------------------------------------------

def site_parameters(draw, w, name, method, shape, norm, layer, place):
    """γ and what else the method learns at one site, away from its initial value so that every term matters."""
    lam = {"attention": norm.lam[0], "mlp": norm.lam[1], "last": norm.lambda_last}.get(place)
    gain = 1.0
    if method in BHYT_FAMILY and norm.gain == "unit":
        gain = norm.kappa_at(layer) / lam
    if norm.depth_gain == "inv_sqrt" and place in ("attention", "mlp"):
        gain /= math.sqrt(layer)
    w[name + ".weight"] = gain * (1 + draw(shape.d, std=0.2))
    if method in BHYT_FAMILY:
        value = torch.tensor(lam * (1 + float(draw(1, std=0.15))), dtype=torch.float64)
        w[name + ".lam"] = value.reshape([1]) if norm.learn_lambda else value
    if method in ("dyt", "derf"):
        w[name + ".alpha"] = {"attention": 1.0, "mlp": 0.5, "last": 0.5}[place] + draw(1, std=0.1)
    if method == "derf":
        w[name + ".shift"] = draw(1, std=0.3)
    if method in ("layernorm", "derf"):
        w[name + ".bias"] = draw(shape.d, std=0.3)
    if method == "seednorm":
        w[name + ".gate"] = 0.5 + draw(shape.d, std=0.2)
        w[name + ".direction"] = draw(shape.d, std=0.1)


def parameters(shape, norm, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(*size, std):
        return torch.randn(*size, generator=generator, dtype=torch.float64) * std

    w = {"model.embed_tokens.weight": draw(shape.vocab, shape.d, std=0.25)}
    if shape.embedding_scale == "learned":
        w["model.shared_scale"] = math.sqrt(shape.d) * (1 + draw(1, std=0.1))
    for i in range(shape.layers):
        layer, method, name = i + 1, norm.method_at(i + 1), f"model.layers.{i}."
        site_parameters(draw, w, name + "input_layernorm", method, shape, norm, layer, "attention")
        site_parameters(draw, w, name + "post_attention_layernorm", method, shape, norm, layer, "mlp")
        if method == "peri":
            site_parameters(draw, w, name + "attn_out_norm", "rmsnorm", shape, norm, layer, "output")
            site_parameters(draw, w, name + "mlp_out_norm", "rmsnorm", shape, norm, layer, "output")
        q, kv, std = shape.heads * shape.head_dim, shape.kv * shape.head_dim, 1.2 / math.sqrt(shape.d)
        for part, rows, cols in (("self_attn.q_proj", q, shape.d), ("self_attn.k_proj", kv, shape.d), ("self_attn.v_proj", kv, shape.d),
                                 ("self_attn.o_proj", shape.d, q), ("mlp.gate_proj", shape.mlp, shape.d), ("mlp.up_proj", shape.mlp, shape.d),
                                 ("mlp.down_proj", shape.d, shape.mlp)):
            w[f"{name}{part}.weight"] = draw(rows, cols, std=std)
        if method in APPROXIMATED and layer not in norm.exact:
            extra = {"none": {}, "beta": {"var_beta": 1.0}, "eta": {"var_eta": 0.0},
                     "residual_aware": {"var_alpha": 1.0, "var_cross_beta": 0.0}}[norm.correction]
            for key, start in extra.items():
                w[name + key] = torch.tensor(start + float(draw(1, std=0.2)), dtype=torch.float64)
    site_parameters(draw, w, "model.norm", norm.last_method(), shape, norm, shape.layers + 1, "last")
    if not shape.tied:
        w["lm_head.weight"] = draw(shape.vocab, shape.d, std=0.3)
    return w


# --- the mathematics -----------------------------------------------------------------------------------------------------------------

def mean_square(x):
    return (x * x).mean(-1, keepdim=True)


def rotate(x, theta, llama3):
    """Rotate-half RoPE on [B, heads, T, D]."""
    half = x.shape[-1] // 2
    f = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    if llama3:
        factor, low, high, original = llama3
        wavelength = 2 * math.pi / f
        smooth = (original / wavelength - low) / (high - low)
        f = torch.where(wavelength > original / low, f / factor,
                        torch.where(wavelength < original / high, f, (1 - smooth) * f / factor + smooth * f))
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * f
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def attention(z, w, name, shape):
    batch, length, _ = z.shape

    def heads(part, n):
        return (z @ w[f"{name}self_attn.{part}.weight"].T).view(batch, length, n, shape.head_dim).transpose(1, 2)

    q = rotate(heads("q_proj", shape.heads), shape.theta, shape.llama3)
    k = rotate(heads("k_proj", shape.kv), shape.theta, shape.llama3).repeat_interleave(shape.heads // shape.kv, 1)
    v = heads("v_proj", shape.kv).repeat_interleave(shape.heads // shape.kv, 1)
    score = q @ k.transpose(-1, -2) / math.sqrt(shape.head_dim)
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    mixed = score.masked_fill(later, -math.inf).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(batch, length, -1) @ w[f"{name}self_attn.o_proj.weight"].T


def mlp(z, w, name):
    gate = z @ w[name + "mlp.gate_proj.weight"].T
    return (gate * torch.sigmoid(gate) * (z @ w[name + "mlp.up_proj.weight"].T)) @ w[name + "mlp.down_proj.weight"].T


def c_attn(w, name, shape, norm):
    """‖W_V W_O‖²_F / (T·d), each KV head repeated for its group; the dense product."""
    v = w[name + "self_attn.v_proj.weight"].detach().view(shape.kv, shape.head_dim, shape.d)
    v = v.repeat_interleave(shape.heads // shape.kv, 0).reshape(-1, shape.d)
    product = w[name + "self_attn.o_proj.weight"].detach() @ v
    return (product ** 2).sum() / (norm.seq_len * shape.d)


def apply_norm(x, w, name, method, layer, shape, norm, square=None):
    """One site. square: the approximated mean square of x where the statistic is not computed."""
    gamma = w[name + ".weight"]
    if method == "layernorm":
        centred = x - x.mean(-1, keepdim=True)
        return gamma * centred / torch.sqrt(mean_square(centred) + shape.eps) + w[name + ".bias"]
    if method == "dyt":
        return gamma * torch.tanh(w[name + ".alpha"] * x)
    if method == "derf":
        return gamma * torch.erf(w[name + ".alpha"] * x + w[name + ".shift"]) + w[name + ".bias"]
    if method in BHYT_FAMILY:
        lam, kappa = w[name + ".lam"], norm.kappa_at(layer)
        if method == "bhyt_star":
            mean = x.mean(-1, keepdim=True)
            deviation = torch.sqrt(mean_square(x - mean) + EPS_BHYT)
            return gamma * torch.tanh(lam / (kappa * deviation + mean.abs()) * x)
        s = torch.sqrt((mean_square(x) if square is None else square) + EPS_BHYT)
        return gamma * torch.tanh(lam / (kappa * s) * x)
    s = torch.sqrt((mean_square(x) if square is None else square) + shape.eps)
    if method == "seednorm":
        gamma = torch.tanh((x * w[name + ".direction"]).sum(-1, keepdim=True)) * w[name + ".gate"] + gamma
    if method == "lns":
        s = s * math.sqrt(layer)
    return gamma * x / s


def approximate_square(x, w, name, method, layer, shape, norm):
    """s̃² of the second site from the block's input x; the constant C carries no gradient, the corrections do."""
    square = mean_square(x)
    if norm.stop_gradient:
        square = square.detach()
    if method == "rmsnorm_shared":
        return square
    first = name + "input_layernorm"
    constant = c_attn(w, name, shape, norm)
    if method == "bhyt":
        constant = constant * (w[first + ".lam"].detach() / norm.kappa_at(layer)) ** 2
    if method == "rmsnorm_approx" or norm.gamma_in_constant:
        constant = constant * (w[first + ".weight"].detach() ** 2).mean()
    constant = constant * norm.out_factor(method, layer, "attention") ** 2
    if norm.correction == "beta":
        result = square + constant * w[name + "var_beta"]
    elif norm.correction == "eta":
        result = square * (1 + w[name + "var_eta"])  # alone, without C
    elif norm.correction == "residual_aware":
        result = square * (1 + w[name + "var_cross_beta"]) + w[name + "var_alpha"] * constant
    else:
        result = square + constant
    return result * (norm.calibration[layer - 1] if norm.calibration else 1.0)


def forward(tokens, w, shape, norm):
    """Logits [B, T, V] and the auxiliary loss."""
    embedding = w["model.embed_tokens.weight"]
    x = embedding[tokens]
    if shape.embedding_scale == "sqrt_d":
        x = x * math.sqrt(shape.d)
    if shape.embedding_scale == "learned":
        x = x * w["model.shared_scale"]
    auxiliary = []
    for i in range(shape.layers):
        layer, method, name = i + 1, norm.method_at(i + 1), f"model.layers.{i}."
        z = apply_norm(x, w, name + "input_layernorm", method, layer, shape, norm) * norm.out_factor(method, layer, "attention")
        h = attention(z, w, name, shape)
        if method == "peri":
            h = apply_norm(h, w, name + "attn_out_norm", "rmsnorm", layer, shape, norm)
        middle = x + h
        square = None
        if method in APPROXIMATED + ("rmsnorm_shared",) and layer not in norm.exact:
            square = approximate_square(x, w, name, method, layer, shape, norm)
            if method in APPROXIMATED:
                auxiliary.append(((torch.log(square + 1e-8) - torch.log(mean_square(middle).detach() + 1e-8)) ** 2).mean())
        z = apply_norm(middle, w, name + "post_attention_layernorm", method, layer, shape, norm, square)
        h = mlp(z * norm.out_factor(method, layer, "mlp"), w, name)
        if method == "peri":
            h = apply_norm(h, w, name + "mlp_out_norm", "rmsnorm", layer, shape, norm)
        x = middle + h
    x = apply_norm(x, w, "model.norm", norm.last_method(), shape.layers + 1, shape, norm)
    head = embedding if shape.tied else w["lm_head.weight"]
    return x @ head.T, torch.stack(auxiliary).mean() if auxiliary else torch.zeros((), dtype=torch.float64)


# --- cases ---------------------------------------------------------------------------------------------------------------------------

def hugging_face_config(shape, transformers5=False, **extra):
    c = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocab, "hidden_size": shape.d,
         "intermediate_size": shape.mlp, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
         "num_key_value_heads": shape.kv, "head_dim": shape.head_dim, "hidden_act": "silu", "max_position_embeddings": 64,
         "initializer_range": 0.02, "rms_norm_eps": shape.eps, "tie_word_embeddings": shape.tied, "attention_bias": False, "mlp_bias": False,
         "bos_token_id": 0, "eos_token_id": [1, 2]}
    rope = {"rope_type": "default"}
    if shape.llama3:
        factor, low, high, original = shape.llama3
        rope = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": original}
    if transformers5:
        c |= {"rope_parameters": rope | {"rope_theta": shape.theta}, "dtype": "float32"}
    else:
        c |= {"rope_theta": shape.theta, "rope_scaling": rope if shape.llama3 else None, "torch_dtype": "float32"}
    return c | extra


LLAMA3 = (4.0, 1.0, 4.0, 24)
CALIBRATION = [1.3, 0.8, 1.1]


def our_cases():
    """name → (shape options, norm options as in the class above, the `norm` object of config.json without method and seq_len)."""
    case = {}

    def add(name, method, norm=None, keys=None, **shape):
        case[name] = (shape, dict(norm or {}, method=method), keys or {})

    for method in ("layernorm", "rmsnorm_approx", "rmsnorm_shared", "lns", "peri", "dyt", "derf", "seednorm", "bhyt_star", "bhyt_exact", "bhyt"):
        add(method, method, tied=method in ("layernorm", "dyt", "bhyt_star"))
    add("bhyt_p_frozen", "bhyt", dict(p=0.96, lam=(1.5, 2.5), learn_lambda=False), {"p": 0.96, "lambda": [1.5, 2.5], "learn_lambda": False})
    add("bhyt_exact_frozen_last", "bhyt_exact", dict(learn_lambda=False, lambda_last=3.0, kappa=4.0),
        {"learn_lambda": False, "lambda_last": 3.0, "kappa": 4.0})
    add("bhyt_decay_last", "bhyt", dict(kappa_schedule="decay", lambda_last=1.5), {"kappa_schedule": "decay", "lambda_last": 1.5})
    add("bhyt_exact_grow_last", "bhyt_exact", dict(kappa_schedule="grow", kappa=2.0, lambda_last=2.0),
        {"kappa_schedule": "grow", "kappa": 2.0, "lambda_last": 2.0})
    add("bhyt_star_mild_last", "bhyt_star", dict(kappa_schedule="mild_grow", kappa=3.0, lambda_last=1.0),
        {"kappa_schedule": "mild_grow", "kappa": 3, "lambda_last": 1})
    add("bhyt_exact_first", "bhyt", dict(exact=(1, 2), kappa=2.0), {"exact_layers": 2, "kappa": 2.0})
    add("bhyt_exact_list", "bhyt", dict(exact=(1, 3), kappa=2.0), {"exact_layers": [1, 3], "kappa": 2.0})
    add("bhyt_exact_all", "bhyt", dict(exact=(1, 2, 3)), {"exact_layers": 3})
    add("rmsnorm_shared_exact", "rmsnorm_shared", dict(exact=(1,)), {"exact_layers": 1})
    add("bhyt_beta", "bhyt", dict(correction="beta", kappa=1.5), {"correction": "beta", "kappa": 1.5})
    add("bhyt_eta", "bhyt", dict(correction="eta", kappa=1.5), {"correction": "eta", "kappa": 1.5})
    add("bhyt_residual_gamma", "bhyt", dict(correction="residual_aware", gamma_in_constant=True, kappa=1.5),
        {"correction": "residual_aware", "gamma_in_constant": True, "kappa": 1.5})
    add("rmsnorm_approx_residual", "rmsnorm_approx", dict(correction="residual_aware", exact=(2,)),
        {"correction": "residual_aware", "exact_layers": [2]})
    add("bhyt_stop", "bhyt", dict(stop_gradient=True, kappa=2.0), {"stop_gradient": True, "kappa": 2.0})
    add("rmsnorm_shared_stop", "rmsnorm_shared", dict(stop_gradient=True), {"stop_gradient": True})
    add("bhyt_aux", "bhyt", dict(aux_loss=0.3, kappa=2.0), {"aux_loss": 0.3, "kappa": 2.0})
    add("bhyt_aux_eta_stop", "bhyt", dict(aux_loss=0.5, correction="eta", stop_gradient=True, exact=(1,), kappa=2.0),
        {"aux_loss": 0.5, "correction": "eta", "stop_gradient": True, "exact_layers": 1, "kappa": 2.0})
    add("rmsnorm_approx_aux_beta", "rmsnorm_approx", dict(aux_loss=0.2, correction="beta"), {"aux_loss": 0.2, "correction": "beta"})
    add("bhyt_calibrated", "bhyt", dict(calibration=CALIBRATION, kappa=2.0), {"calibration": CALIBRATION, "kappa": 2.0})
    add("bhyt_range", "bhyt", dict(layers=(2, 3)), {"layers": [2, 3], "elsewhere": "rmsnorm"})
    add("bhyt_range_lns", "bhyt", dict(layers=(1, 1), elsewhere="lns", lambda_last=2.0), {"layers": [1, 1], "elsewhere": "lns", "lambda_last": 2.0})
    add("seednorm_range_peri", "seednorm", dict(layers=(2, 2), elsewhere="peri"), {"layers": [2, 2], "elsewhere": "peri"})
    add("rmsnorm_range_bhyt", "rmsnorm", dict(layers=(1, 2), elsewhere="bhyt"), {"layers": [1, 2], "elsewhere": "bhyt"})
    add("bhyt_unit_sqrt_d", "bhyt", dict(gain="unit", depth_gain="inv_sqrt"), {"gain": "unit", "depth_gain": "inv_sqrt"},
        embedding_scale="sqrt_d")
    add("bhyt_star_unit_learned", "bhyt_star", dict(gain="unit"), {"gain": "unit"}, embedding_scale="learned", tied=True)
    add("bhyt_fixed_unit", "bhyt", dict(gain="fixed_unit", depth_factor="inv_sqrt", kappa=3.0, kappa_schedule="mild_grow", lam=(1.2, 2.4), lambda_last=1.5),
        {"gain": "fixed_unit", "depth_factor": "inv_sqrt", "kappa": 3.0, "kappa_schedule": "mild_grow", "lambda": [1.2, 2.4], "lambda_last": 1.5})
    add("bhyt_fixed_gamma_range", "rmsnorm", dict(gain="fixed_unit", gamma_in_constant=True, correction="beta", layers=(1, 1), elsewhere="bhyt"),
        {"gain": "fixed_unit", "gamma_in_constant": True, "correction": "beta", "layers": [1, 1], "elsewhere": "bhyt"})
    for method in ("layernorm", "seednorm", "peri", "rmsnorm_approx", "derf"):
        add(method + "_depth_factor", method, dict(depth_factor="inv_sqrt"), {"depth_factor": "inv_sqrt"})
    add("rmsnorm_sqrt_d", "rmsnorm", dict(depth_gain="inv_sqrt"), {"depth_gain": "inv_sqrt"}, embedding_scale="sqrt_d")
    add("dyt_learned", "dyt", embedding_scale="learned", heads=2, kv=2, head_dim=10)
    add("bhyt_everything", "bhyt",
        dict(kappa=3.0, kappa_schedule="mild_grow", lam=(1.2, 2.4), lambda_last=1.7, correction="residual_aware", gamma_in_constant=True,
             calibration=CALIBRATION, exact=(2,), aux_loss=0.4, layers=(1, 2), elsewhere="rmsnorm"),
        {"kappa": 3.0, "kappa_schedule": "mild_grow", "lambda": [1.2, 2.4], "lambda_last": 1.7, "correction": "residual_aware",
         "gamma_in_constant": True, "calibration": CALIBRATION, "exact_layers": [2], "aux_loss": 0.4, "layers": [1, 2]},
        embedding_scale="learned", llama3=LLAMA3, heads=4, kv=2, head_dim=6, theta=500000.0, tied=True)
    return case


def reference_cases():
    """The reference's flat keys: name → (shape options, norm options, config.json keys)."""
    lam = {"input_layer_lam": 2.0, "post_layer_lam": 1.0, "last_layer_lam": 0.0}
    bhyt = {"norm_type": "bhyt", "seq_len": 16, "learnable_lam": True} | lam
    frozen = dict(learn_lambda=False)
    return {
        "ref_rms": ({}, dict(method="rmsnorm"), {"norm_type": "rms", "input_layer_lam": "None", "last_layer_lam": None, "seq_len": None}),
        "ref_bhyt_frozen": ({}, frozen, bhyt | {"learnable_lam": False, "inference_var_dtype": "float32", "lam_layer_scale": False}),
        "ref_bhytline": ({"tied": True}, dict(kappa=5.0, kappa_schedule="decay", exact=(1,), lambda_last=2.0),
                         bhyt | {"norm_type": "bhytline", "bhyt_kappa": 5, "bhyt_kappa_schedule": "decay", "var_approx_exact_layers": 1,
                                 "last_layer_lam": 2.0}),
        "ref_exact_list": ({}, dict(exact=(1, 3), kappa=2.0), bhyt | {"var_approx_exact_layer_list": "0,2", "bhyt_kappa": 2.0}),
        "ref_beta_gamma": ({}, dict(correction="beta", gamma_in_constant=True, kappa=2.0),
                           bhyt | {"var_approx_method": "beta", "use_gamma_var": True, "bhyt_kappa": 2.0}),
        "ref_residual": ({"embedding_scale": "learned"}, dict(correction="residual_aware", calibration=CALIBRATION, kappa=2.0),
                         bhyt | {"var_approx_method": "residual_aware", "var_approx_calibration": CALIBRATION, "bhyt_kappa": 2.0,
                                 "use_shared_scale": True}),
        "ref_range": ({}, dict(layers=(2, 3), learn_lambda=False), {k: v for k, v in bhyt.items() if k != "learnable_lam"} |
                      {"bhyt_layer_range": [1, 2], "fallback_norm_type": "rms", "var_approx_method": None}),
        "ref_bhytstar": ({}, dict(method="bhyt_exact", kappa_schedule="grow", kappa=3.0),
                         {"norm_type": "bhytstar", "learnable_lam": True, "bhyt_kappa": 3.0, "bhyt_kappa_schedule": "grow"} | lam |
                         {"last_layer_lam": 2.0}),
    }


def all_cases():
    """name → (shape, norm, config.json)."""
    out = {}
    plain = Shape(llama3=LLAMA3, theta=500000.0, tied=True)
    out["rmsnorm"] = (plain, Norm("rmsnorm"), hugging_face_config(plain))
    plain = Shape(llama3=LLAMA3, theta=5000.0, heads=4, kv=4, head_dim=6)
    config = hugging_face_config(plain, transformers5=True)
    del config["head_dim"], config["num_key_value_heads"], config["tie_word_embeddings"]  # all absent: the defaults of Llama
    out["rmsnorm_v5"] = (plain, Norm("rmsnorm"), config)
    for name, (shape, norm, keys) in our_cases().items():
        shape = Shape(**shape)
        norm = Norm(**norm)
        config = hugging_face_config(shape, model_type="bhyt", embedding_scale=shape.embedding_scale,
                                     norm={"method": norm.method, "seq_len": norm.seq_len} | keys)
        out[name] = (shape, norm, config)
    for name, (shape, norm, keys) in reference_cases().items():
        shape = Shape(**shape)
        out[name] = (shape, Norm(**norm), hugging_face_config(shape, **keys))
    return out


# --- files ---------------------------------------------------------------------------------------------------------------------------

def greedy(prompt, new, w, shape, norm):
    ids, margin = prompt.clone(), math.inf
    for _ in range(new):
        best = forward(ids, w, shape, norm)[0][0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids = torch.cat([ids, best.indices[:1][None]], 1)
    return ids, margin


def evaluate(stored, tokens, shape, norm, nudge=0.0):
    """Logits, loss and gradients; nudge changes every weight by a random part of itself."""
    generator = torch.Generator().manual_seed(1)
    w = {k: v.double() * (1 + nudge * torch.randn(v.shape, generator=generator, dtype=torch.float64)) for k, v in stored.items()}
    w = {k: v.requires_grad_(norm.learn_lambda or not k.endswith(".lam")) for k, v in w.items()}
    logits, auxiliary = forward(tokens[:, :-1], w, shape, norm)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, shape.vocab), tokens[:, 1:].reshape(-1))
    (loss + norm.aux_loss * auxiliary).backward()
    return logits.detach(), loss.detach(), {k: v.grad for k, v in w.items() if v.grad is not None}


def draw_case(name, shape, norm, length):
    """Weights as stored and tokens, from the first seed whose greedy continuation leaves no doubt in fp32 and whose gradients an fp32
    program can get right: rounding every weight to fp32 alone would move them by less than 4e-6 of their largest value."""
    for seed in range(zlib.crc32(name.encode()), 2**40):
        # Matrices are stored in bf16, so everything is computed from the values as stored; vectors keep fp32.
        stored = {k: v.to(torch.bfloat16 if v.dim() == 2 else torch.float32) for k, v in parameters(shape, norm, seed).items()}
        tokens = torch.randint(shape.vocab, (2, length + 1), generator=torch.Generator().manual_seed(seed + 1))
        continued, margin = greedy(tokens[:1, : length // 2], length // 2, {k: v.double() for k, v in stored.items()}, shape, norm)
        if margin < 2e-3:
            continue
        here, there = evaluate(stored, tokens, shape, norm)[2], evaluate(stored, tokens, shape, norm, nudge=2.0**-24)[2]
        if max(float((here[k] - there[k]).abs().max() / here[k].abs().max()) for k in here) < 4e-6:
            return stored, tokens, continued


def write_case(folder, name, shape, norm, config, length=16):
    stored, tokens, continued = draw_case(name, shape, norm, length)
    logits, loss, gradients = evaluate(stored, tokens, shape, norm)
    w = {k: v.double() for k, v in stored.items()}
    io = {"tokens": tokens, "logits": logits.float(), "loss": loss.float().reshape(1), "greedy": continued}
    io |= {"grad." + k: v.float() for k, v in gradients.items()}
    for i in range(shape.layers):
        if norm.method_at(i + 1) in APPROXIMATED:
            io[f"c_attn.{i}"] = c_attn(w, f"model.layers.{i}.", shape, norm).float().reshape(1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({k: v.contiguous() for k, v in io.items()}, folder / "io.safetensors")
    for file in folder.glob("*.safetensors"):
        file.chmod(0o644)
    return float(loss)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "tests/golden/models")
    parser.add_argument("--only", nargs="*")
    args = parser.parse_args()
    for name, (shape, norm, config) in all_cases().items():
        if not args.only or name in args.only:
            print(f"{name:28} loss {write_case(args.out / name, name, shape, norm, config):.6f}", flush=True)


if __name__ == "__main__":
    main()
