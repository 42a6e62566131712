"""Configuration of a Llama whose normalization is a choice.

This file and modeling_bhyt.py lie beside every checkpoint that a plain Llama loader would silently get wrong. Load such a folder with
    AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)
"""
from transformers import LlamaConfig

# Missing keys of config.json's `norm` object. Layers count from 1.
NORM_DEFAULTS = {
    "method": "bhyt",
    "kappa": 10.0,
    "lambda": [2.0, 1.0],  # attention, MLP
    "lambda_last": 0.0,  # above 0: the model ends with bhyt_exact instead of RMSNorm
    "learn_lambda": True,
    "gain": "one",
    "depth_gain": "none",
    "depth_factor": "none",
    "kappa_schedule": "constant",
    "exact_layers": 0,  # a number (the first N) or a list
    "correction": "none",
    "gamma_in_constant": False,
    "stop_gradient": False,
    "calibration": [],
    "layers": "all",  # or [from, to]; the others take `elsewhere`
    "elsewhere": "rmsnorm",
    "alpha": "auto",
    "seq_len": None,  # T of c_attn
}


class BhytConfig(LlamaConfig):
    """LlamaConfig with two more keys: `norm` (the method and its options) and `embedding_scale` ("none", "sqrt_d", "learned")."""

    model_type = "bhyt"

    def norm_options(self):
        options = NORM_DEFAULTS | (getattr(self, "norm", None) or {})
        if "p" in options:  # the share of inputs that the bound covers, instead of kappa
            options["kappa"] = (1.0 - options["p"]) ** -0.5
        options["seq_len"] = options["seq_len"] or self.max_position_embeddings
        return options
