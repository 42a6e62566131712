"""A Llama whose normalization is a choice: z = out_factor·(γ ⊙ f(a·x + c) + β) with a per-token scale a made from a
statistic, and a map f.

One row of METHODS per method, one module (FamilyNorm) for all of them; the rest is transformers' own Llama.
"""
import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaForCausalLM, LlamaModel, LlamaPreTrainedModel

from .configuration_bhyt import BhytConfig


@dataclass(frozen=True)
class Method:
    first: str  # statistic of the first site: none, rms, mean_var, mean_std
    second: str  # … of the second: also approximate, block_input (both without looking at the site's own input)
    map: str  # id, tanh, erf
    scalar: str  # the learned scalar of a site: lam, alpha or none ("")
    bias: bool
    shift: bool
    seed: bool  # γ becomes tanh(x·b)·g + γ
    over_depth: bool  # a / √layer
    output_norms: bool  # RMSNorm on each sublayer's output too
    gamma_in_constant: bool
    end: str  # the final norm: rms, own, or rms_or_exact (bhyt_exact where lambda_last > 0)
    eps: float  # 0: the model's


# The program writes the rows of its own table here when it saves a checkpoint.
METHODS = {
    # rows of METHODS
}
MAPS = {"id": lambda u: u, "tanh": torch.tanh, "erf": torch.erf}


def mean_square(x):
    return x.pow(2).mean(-1, keepdim=True)


def kappa_at(options, layer):
    power = {"constant": 0.0, "decay": -0.5, "grow": 0.5, "mild_grow": 0.25}[options["kappa_schedule"]]
    return options["kappa"] * layer**power


class FamilyNorm(nn.Module):
    """One site of any method. place: 0 attention, 1 MLP, 2 the end of the model, None a sublayer's output."""

    def __init__(self, config, name, statistic, layer, place):
        super().__init__()
        method, options = METHODS[name], config.norm_options()
        self.method, self.statistic = method, statistic
        self.eps = method.eps or config.rms_norm_eps
        self.factor, self.out_factor, self.start, gain = 1.0, 1.0, {}, 1.0  # out_factor: constant, outside the map
        if method.scalar == "lam":
            lam, kappa = (*options["lambda"], options["lambda_last"])[place], kappa_at(options, layer)
            self.factor, self.start["lam"] = 1.0 / kappa, lam
            gain = kappa / lam if options["gain"] == "unit" else 1.0
            self.out_factor = kappa / lam if options["gain"] == "fixed_unit" and place in (0, 1) else 1.0
        if method.scalar == "alpha":
            wide = config.hidden_size > 2048 and method.map != "erf"
            automatic = (0.2, 0.05, 0.05) if wide else (1.0, 0.5, 0.5)
            self.start["alpha"] = (automatic if options["alpha"] == "auto" else options["alpha"])[place]
        if place in (0, 1):
            if method.over_depth:
                self.factor /= math.sqrt(layer)
            if options["depth_gain"] == "inv_sqrt":
                gain /= math.sqrt(layer)
            if options["depth_factor"] == "inv_sqrt":
                self.out_factor /= math.sqrt(layer)
        self.start["weight"] = gain
        self.weight = nn.Parameter(torch.empty(config.hidden_size))
        if method.scalar == "lam":
            self.lam = nn.Parameter(torch.empty([1] if options["learn_lambda"] else []), requires_grad=options["learn_lambda"])
        if method.scalar == "alpha":
            self.alpha = nn.Parameter(torch.empty(1))
        if method.bias:
            self.bias, self.start["bias"] = nn.Parameter(torch.empty(config.hidden_size)), 0.0
        if method.shift:
            self.shift, self.start["shift"] = nn.Parameter(torch.empty(1)), 0.0
        if method.seed:
            self.gate, self.start["gate"] = nn.Parameter(torch.empty(config.hidden_size)), 1.0
            self.direction, self.start["direction"] = nn.Parameter(torch.empty(config.hidden_size)), 0.0
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self):
        for name, value in self.start.items():
            getattr(self, name).fill_(value)

    def scalar(self):
        return getattr(self, self.method.scalar).float() if self.method.scalar else 1.0

    def forward(self, x, square=None):
        """square: the mean square of x where it is not to be computed from x itself."""
        kind, x = x.dtype, x.float()
        a = self.factor * self.scalar()
        if self.statistic == "mean_std":  # λ/(κ·s + |μ|)
            mean = x.mean(-1, keepdim=True)
            a = a / (torch.sqrt(mean_square(x - mean) + self.eps) + self.factor * mean.abs())
        elif self.statistic == "mean_var":
            x = x - x.mean(-1, keepdim=True)
            a = a * torch.rsqrt(mean_square(x) + self.eps)
        elif self.statistic in ("rms", "approximate", "block_input"):
            a = a * torch.rsqrt((mean_square(x) if square is None else square) + self.eps)
        elif self.statistic != "none":
            raise ValueError(f"FamilyNorm computes no statistic {self.statistic}")
        gamma = self.weight.float()
        if self.method.seed:
            gamma = gamma + torch.tanh((x * self.direction.float()).sum(-1, keepdim=True)) * self.gate.float()
        z = gamma * MAPS[self.method.map](a * x + (self.shift.float() if self.method.shift else 0.0))
        return (self.out_factor * (z + self.bias.float() if self.method.bias else z)).to(kind)


class BhytDecoderLayer(LlamaDecoderLayer):
    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        options, layer = config.norm_options(), layer_idx + 1
        inside = options["layers"] == "all" or options["layers"][0] <= layer <= options["layers"][1]
        name = options["method"] if inside else options["elsewhere"]
        method = METHODS[name]
        exact = options["exact_layers"]
        exact = layer <= exact if isinstance(exact, int) else layer in exact
        second = "rms" if exact and method.second in ("approximate", "block_input") else method.second
        self.input_layernorm = FamilyNorm(config, name, method.first, layer, 0)
        self.post_attention_layernorm = FamilyNorm(config, name, second, layer, 1)
        self.output_norms = method.output_norms
        if method.output_norms:
            self.attn_out_norm = FamilyNorm(config, "rmsnorm", "rms", layer, None)
            self.mlp_out_norm = FamilyNorm(config, "rmsnorm", "rms", layer, None)
        self.second, self.options = second, options
        self.gamma_in_constant = method.gamma_in_constant or options["gamma_in_constant"]
        self.calibration = options["calibration"][layer_idx] if options["calibration"] and inside else 1.0
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.cached = (None, None)
        self.start = {}
        if method.second == "approximate":
            self.start = {"none": {}, "beta": {"var_beta": 1.0}, "eta": {"var_eta": 0.0},
                          "residual_aware": {"var_alpha": 1.0, "var_cross_beta": 0.0}}[options["correction"]]
        for key, value in self.start.items():
            setattr(self, key, nn.Parameter(torch.tensor(value)))

    @torch.no_grad()
    def reset_parameters(self):
        for key, value in self.start.items():
            getattr(self, key).fill_(value)

    @torch.no_grad()
    def constant(self):
        """C = c_attn·(out_factor·λ/κ)², c_attn = ‖W_V W_O‖²/(T·d) by the trace identity; made again only when a weight has changed."""
        v, o, norm = self.self_attn.v_proj.weight, self.self_attn.o_proj.weight, self.input_layernorm
        state = tuple((p.data_ptr(), p._version) for p in (v, o, *norm.parameters()))
        if self.cached[0] != state:
            d = o.shape[0]
            v = v.float().view(self.kv_heads, -1, d)
            o = o.float().view(d, self.heads, -1).transpose(0, 1)
            v = v.repeat_interleave(self.heads // self.kv_heads, 0).reshape(-1, d)
            o = o.transpose(1, 2).reshape(-1, d)
            c = ((v @ v.T) * (o @ o.T)).sum() / (self.options["seq_len"] * d)
            c = c * (norm.factor * norm.out_factor * norm.scalar()) ** 2
            if self.gamma_in_constant:
                c = c * mean_square(norm.weight.float())
            self.cached = (state, c)
        return self.cached[1]

    def given_square(self, x):
        """s̃² of the second site from the block's input, or None where the site computes its own."""
        if self.second not in ("approximate", "block_input"):
            return None
        square = mean_square(x.float())
        if self.options["stop_gradient"]:
            square = square.detach()
        if self.second == "approximate":
            correction = self.options["correction"]
            if correction == "none":
                square = square + self.constant()
            elif correction == "beta":
                square = square + self.constant() * self.var_beta.float()
            elif correction == "eta":  # without the constant
                square = square * (1.0 + self.var_eta.float())
            else:  # residual_aware
                square = square * (1.0 + self.var_cross_beta.float()) + self.var_alpha.float() * self.constant()
        return square * self.calibration

    def forward(self, hidden_states, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False,
                position_embeddings=None, **kwargs):
        x = hidden_states
        h, _ = self.self_attn(hidden_states=self.input_layernorm(x), attention_mask=attention_mask, position_ids=position_ids,
                              past_key_values=past_key_values, use_cache=use_cache, position_embeddings=position_embeddings, **kwargs)
        if self.output_norms:
            h = self.attn_out_norm(h)
        middle = x + h
        h = self.mlp(self.post_attention_layernorm(middle, self.given_square(x)))
        if self.output_norms:
            h = self.mlp_out_norm(h)
        return middle + h


class BhytPreTrainedModel(LlamaPreTrainedModel):
    config_class = BhytConfig
    _no_split_modules = ["BhytDecoderLayer"]
    _keys_to_ignore_on_load_missing = [r"\.var_(beta|eta|alpha|cross_beta)$"]  # exact layers have no use for them

    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, (FamilyNorm, BhytDecoderLayer)):
            module.reset_parameters()
        if isinstance(module, BhytModel) and hasattr(module, "shared_scale"):
            nn.init.constant_(module.shared_scale, math.sqrt(self.config.hidden_size))


class BhytModel(BhytPreTrainedModel, LlamaModel):
    def __init__(self, config):
        super().__init__(config)
        options, last = config.norm_options(), config.num_hidden_layers + 1
        method = METHODS[options["method"]]
        self.layers = nn.ModuleList([BhytDecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        if method.end == "rms_or_exact" and options["lambda_last"] > 0:
            self.norm = FamilyNorm(config, "bhyt_exact", "rms", last, 2)
        elif method.end == "own":
            self.norm = FamilyNorm(config, options["method"], method.first, last, 2)
        else:
            self.norm = FamilyNorm(config, "rmsnorm", "rms", last, 2)
        self.embedding_scale = getattr(config, "embedding_scale", "none")
        if self.embedding_scale == "learned":
            self.shared_scale = nn.Parameter(torch.full([1], math.sqrt(config.hidden_size)))
        self.post_init()

    def forward(self, input_ids=None, inputs_embeds=None, **kwargs):
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
            if self.embedding_scale == "sqrt_d":
                inputs_embeds = inputs_embeds * math.sqrt(self.config.hidden_size)
            if self.embedding_scale == "learned":
                inputs_embeds = inputs_embeds * self.shared_scale.to(inputs_embeds.dtype)
        return super().forward(inputs_embeds=inputs_embeds, **kwargs)


class BhytForCausalLM(BhytPreTrainedModel, LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.model = BhytModel(config)
        self.post_init()
