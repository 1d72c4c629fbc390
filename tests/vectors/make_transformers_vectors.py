#!/usr/bin/env python3
"""Makes hf_*/ and recall_transformers.json in tests/data/reference: what transformers computes in float32.

  make_transformers_vectors.py ROOT [NAME]...   ROOT: the root of the repository; NAME: only these checkpoints

Needs the PyPI packages torch, transformers, safetensors and numpy (made with torch 2.15.0 and transformers
5.23.0, on a CPU). hf_NAME is a checkpoint as people publish them (config.json, model.safetensors,
tokenizer.json) with small random weights, one for each kind of network that the converter takes; transformers
reads config.json back from that folder. logits.json beside it holds token ids, the logits after some prefixes
of them, and the greedy continuation of all, with the distance of the two best logits at each token. Every
logit comes from a forward pass over the whole text, without a cache."""

import json
import os
import sys

import numpy as np
import reference_models
import torch
from checkpoints import BOS, load, write_checkpoint, write_json

PREFIXES = [1, 7, 64, 150]
SMALL_CONTINUATION, RECALL_CONTINUATION = 16, 64
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}

GLM = {"rope_theta": 10000.0, "partial_rotary_factor": 0.5, "attention_bias": True, "pad_token_id": 258}


def shape(hidden, heads, kv_heads, head_dim, ffn, tied=False, dtype="float32"):
    sizes = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,
    }
    return sizes if head_dim is None else {**sizes, "head_dim": head_dim}


# RoPE is set as older files do it (rope_theta, rope_scaling) or as newer ones do (rope_parameters).
MODELS = {
    "llama_gqa": {**LLAMA, **shape(32, 4, 2, None, 48), "rope_theta": 10000.0},
    "llama_mha_tied": {**LLAMA, **shape(32, 4, 4, None, 48, tied=True), "rope_theta": 10000.0},
    "llama_mqa": {
        **LLAMA,
        **shape(32, 4, 1, 16, 48, dtype="float16"),
        "rms_norm_eps": 1e-2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
    "llama_wide_heads": {**LLAMA, **shape(40, 2, 1, 64, 56, dtype="bfloat16"), "rope_theta": 10000.0},
    "llama_biases": {**LLAMA, **shape(32, 4, 2, 8, 48), "rope_theta": 10000.0, "attention_bias": True},
    "llama3_rope": {
        **LLAMA,
        **shape(32, 2, 1, 16, 48),
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama_linear_rope": {
        **LLAMA,
        **shape(32, 2, 2, 16, 48, tied=True),
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    },
    "llama_yarn_rope": {
        **LLAMA,
        **shape(32, 2, 1, 16, 48),
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 2.0,
            "beta_slow": 0.25,
            "attention_factor": 1.25,
        },
    },
    "llama_yarn_mscale": {
        **LLAMA,
        **shape(32, 2, 1, 16, 48, dtype="float16"),
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 1.5,
            "mscale_all_dim": 0.5,
        },
    },
    "qwen2_yarn_rope": {
        **QWEN2,
        **shape(32, 2, 1, None, 48, tied=True),
        "rope_theta": 10000.0,
        "use_sliding_window": False,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    },
    "mistral": {
        **MISTRAL,
        **shape(32, 4, 2, 16, 48, dtype="bfloat16"),
        "rope_theta": 1000000.0,
        "sliding_window": None,
    },
    "mistral_window": {**MISTRAL, **shape(32, 4, 2, 8, 48), "rope_theta": 10000.0, "sliding_window": 24},
    "qwen2": {
        **QWEN2,
        **shape(32, 4, 2, None, 48, tied=True),
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": 24,
        "max_window_layers": 2,
    },
    "qwen3": {
        **QWEN3,
        **shape(32, 4, 2, 16, 48, dtype="bfloat16"),
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": None,
    },
    "qwen3_mqa_tied": {
        **QWEN3,
        **shape(48, 6, 1, 8, 40, tied=True),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
}


def family(architecture, model_type, **more):
    return {"architectures": [architecture], "model_type": model_type, **more}


def longrope(n, **more):
    """Divisors that grow with the wave, as those of published checkpoints do."""
    return {
        "type": "longrope",
        "short_factor": [round(1 + 0.02 * i, 3) for i in range(n)],
        "long_factor": [round(1 + 0.6 * i * i / n, 3) for i in range(n)],
        **more,
    }


GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}
SLIDES, SEES_ALL = "sliding_attention", "full_attention"

# One for every family beyond those, and for what its members differ in. Windows are shorter than most prompts, and
# longer than some (PREFIXES).
MODELS.update({
    "gemma": {**family("GemmaForCausalLM", "gemma", **GEMMA), **shape(32, 4, 1, 16, 48, tied=True)},
    "gemma2": {
        **family("Gemma2ForCausalLM", "gemma2", **GEMMA),
        **shape(32, 4, 2, 16, 48, tied=True),
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3": {
        **family("Gemma3ForCausalLM", "gemma3_text", **GEMMA),
        **shape(32, 4, 2, 16, 48, tied=True, dtype="bfloat16"),
        "num_hidden_layers": 6,
        "sliding_window": 24,
        "query_pre_attn_scalar": 16,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3_by_type": {
        **family("Gemma3ForCausalLM", "gemma3_text", **GEMMA),
        **shape(32, 2, 1, 16, 48, tied=True),
        "num_hidden_layers": 3,
        "sliding_window": 100,
        "layer_types": [SLIDES, SEES_ALL, SLIDES],
        "query_pre_attn_scalar": 20,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    },
    "phi3": {
        **family("Phi3ForCausalLM", "phi3"),
        **shape(32, 4, 2, None, 48),
        "rope_theta": 10000.0,
        "sliding_window": 40,
        "original_max_position_embeddings": 512,
        "pad_token_id": 258,
    },
    "phi3_longrope_short": {
        **family("Phi3ForCausalLM", "phi3"),
        **shape(32, 2, 1, None, 48),
        "rope_theta": 10000.0,
        "sliding_window": None,
        "original_max_position_embeddings": 256,
        "rope_scaling": longrope(8),
        "pad_token_id": 258,
    },
    "phi4_mini_partial": {
        **family("Phi3ForCausalLM", "phi3"),
        **shape(32, 2, 1, None, 48, tied=True, dtype="bfloat16"),
        "rope_theta": 10000.0,
        "sliding_window": None,
        "original_max_position_embeddings": 4,
        "partial_rotary_factor": 0.75,
        "rope_scaling": longrope(6),
        "pad_token_id": 258,
    },
    "phi3_longrope_long": {
        **family("Phi3ForCausalLM", "phi3"),
        **shape(32, 2, 2, None, 48),
        "rope_theta": 10000.0,
        "sliding_window": None,
        "original_max_position_embeddings": 4,
        "rope_scaling": longrope(8, factor=2.0),
        "pad_token_id": 258,
    },
    "smollm3": {
        **family("SmolLM3ForCausalLM", "smollm3"),
        **shape(32, 4, 2, None, 48, tied=True),
        "num_hidden_layers": 4,
        "rope_theta": 50000.0,
        "no_rope_layers": [1, 1, 1, 0],
        "pad_token_id": 258,
    },
    "granite": {
        **family("GraniteForCausalLM", "granite"),
        **shape(32, 4, 2, None, 48),
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.3,
    },
    "olmo2": {**family("Olmo2ForCausalLM", "olmo2"), **shape(32, 4, 2, None, 48), "rope_theta": 500000.0},
    "olmo3": {
        **family("Olmo3ForCausalLM", "olmo3"),
        **shape(32, 2, 2, None, 48),
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 1.1,
        },
        "layer_types": [SLIDES, SLIDES, SLIDES, SEES_ALL],
    },
    "glm": {**family("GlmForCausalLM", "glm"), **shape(32, 4, 2, 16, 48), **GLM},
    # What llama.cpp's converter, which knows GLM-4 of 2024 as "chatglm", does not read is as it assumes.
    "glm_chat": {
        **family("GlmForCausalLM", "glm"),
        **shape(32, 4, 2, 8, 48),
        "rms_norm_eps": 1e-5,
        **GLM,
        "seq_length": 512,
    },
    "glm4": {**family("Glm4ForCausalLM", "glm4"), **shape(32, 4, 2, 16, 48), **GLM},
    "exaone4": {
        **family("Exaone4ForCausalLM", "exaone4"),
        **shape(32, 4, 2, 16, 48),
        "num_hidden_layers": 4,
        "rope_theta": 1000000.0,
        "sliding_window": 24,
        "sliding_window_pattern": "LLG",
        "layer_types": [SLIDES, SLIDES, SEES_ALL, SEES_ALL],
    },
    "ministral": {
        **family("MinistralForCausalLM", "ministral"),
        **shape(32, 4, 2, 16, 48),
        "rope_theta": 100000.0,
        "sliding_window": 24,
        "layer_types": [SEES_ALL, SLIDES],
    },
    "qwen2_window_from": {
        **QWEN2,
        **shape(32, 4, 2, None, 48),
        "num_hidden_layers": 3,
        "rope_theta": 1000000.0,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
})

# Mixtures of experts. Sizes of experts are not those of dense layers, and not all multiples of 16.
MODELS.update({
    "mixtral": {
        **family("MixtralForCausalLM", "mixtral"),
        **shape(32, 4, 2, 16, 48),
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.02,
    },
    "qwen3moe": {
        **family("Qwen3MoeForCausalLM", "qwen3_moe"),
        **shape(32, 4, 2, 16, 80, dtype="bfloat16"),
        "rope_theta": 1000000.0,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
        "sliding_window": None,
    },
    "qwen3moe_plain_weights": {
        **family("Qwen3MoeForCausalLM", "qwen3_moe"),
        **shape(32, 2, 1, 16, 80, tied=True),
        "rope_theta": 1000000.0,
        "num_experts": 5,
        "num_experts_per_tok": 5,
        "moe_intermediate_size": 24,
        "norm_topk_prob": False,
    },
    "olmoe": {
        **family("OlmoeForCausalLM", "olmoe"),
        **shape(32, 4, 4, None, 24),
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "clip_qkv": None,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": False,
        "pad_token_id": 258,
    },
})


# Layer norms; a quarter of each head rotates where nothing says.
STABLELM = family("StableLmForCausalLM", "stablelm", layer_norm_eps=1e-5, rope_theta=10000.0)
MODELS.update({
    "stablelm": {**STABLELM, **shape(64, 4, 4, None, 48), "partial_rotary_factor": 0.25},
    "stablelm2": {**STABLELM, **shape(64, 4, 2, None, 48, tied=True), "use_qkv_bias": True, "layer_norm_eps": 1e-3},
    "stablelm2_12b": {
        **STABLELM,
        **shape(64, 4, 2, None, 48, dtype="bfloat16"),
        "partial_rotary_factor": 0.5,
        "qk_layernorm": True,
        "use_parallel_residual": True,
    },
})

# Attention sinks, and experts in MXFP4 with biases. The limit is one that some values pass.
GPT_OSS = {
    **family("GptOssForCausalLM", "gpt_oss", rms_norm_eps=1e-5, attention_bias=True),
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 24,
    "swiglu_limit": 1.5,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    },
}
MODELS.update({
    "gpt_oss": {
        **GPT_OSS,
        **shape(64, 4, 2, 16, 32, dtype="bfloat16"),
        "num_hidden_layers": 4,
        "layer_types": [SLIDES, SEES_ALL, SLIDES, SEES_ALL],
    },
    "gpt_oss_one_kv_head": {**GPT_OSS, **shape(32, 8, 1, 8, 64), "num_experts_per_tok": 4, "swiglu_limit": 7.0},
})
# As it is saved after training: experts as transformers holds them, columns first.
MODELS["gpt_oss_16_bits"] = {**GPT_OSS, **shape(64, 4, 2, 16, 48, dtype="bfloat16")}
del MODELS["gpt_oss_16_bits"]["quantization_config"]

# Windows in families whose members switch them on: some layers from one on, all of them, or those that do not rotate.
MODELS.update({
    "qwen3_window_from": {
        **QWEN3,
        **shape(32, 4, 2, 16, 48),
        "num_hidden_layers": 3,
        "rope_theta": 1000000.0,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen2_window_wide": {
        **QWEN2,
        **shape(32, 4, 1, None, 48),
        "rope_theta": 10000.0,
        "use_sliding_window": True,
        "sliding_window": 100,
        "max_window_layers": 0,
    },
    "qwen3moe_window": {
        **family("Qwen3MoeForCausalLM", "qwen3_moe"),
        **shape(32, 4, 2, 16, 80),
        "num_hidden_layers": 3,
        "rope_theta": 1000000.0,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "mixtral_window": {
        **family("MixtralForCausalLM", "mixtral"),
        **shape(32, 4, 2, None, 48),
        "rope_theta": 10000.0,
        "sliding_window": 24,
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
    },
    "smollm3_window": {
        **family("SmolLM3ForCausalLM", "smollm3"),
        **shape(32, 4, 2, None, 48, tied=True),
        "num_hidden_layers": 4,
        "rope_theta": 50000.0,
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 24,
        "pad_token_id": 258,
    },
})

# Not in transformers: a Llama under the names, and with the packed projections, that InternLM2 publishes.
MODELS["internlm2"] = {
    **family("InternLM2ForCausalLM", "internlm2", bias=False),
    **shape(32, 4, 2, None, 48, dtype="float16"),
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
}

# Tokens a model is converted for, where that is not all it was trained for.
CONTEXTS = {"phi3_longrope_short": 256}


def last_logits(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0, -1]


def numbers(values):
    return [float(f"{v:.8g}") for v in values.tolist()]


def greedy(model, ids, count):
    """count tokens; the distance of the two best logits at each; the logits after all of them."""
    ids, gaps = list(ids), []
    for _ in range(count):
        best = torch.topk(last_logits(model, ids), 2)
        gaps.append(float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[-count:], [float(f"{g:.4g}") for g in gaps], last_logits(model, ids)


def continued_reference(model, rng, least_gap=0.01):
    """Logits of random ids and their continuation; None unless no rounding changes it and it has no special tokens."""
    ids = [BOS] + rng.integers(0, 256, max(PREFIXES) - 1).tolist()
    tokens, gap, after = greedy(model, ids, SMALL_CONTINUATION)
    if min(gap) <= least_gap or max(tokens) >= BOS:
        return None
    logits = [{"n": n, "values": numbers(last_logits(model, ids[:n]))} for n in PREFIXES]
    return {"ids": ids, "logits": logits, "continuation": tokens, "gap": gap, "after": numbers(after)}


def make_small(folder, name, settings, seed):
    """Draws weights until the continuation is one that no rounding changes and without special tokens."""
    path = os.path.join(folder, "hf_" + name)
    for attempt in range(20):
        rng = np.random.default_rng([seed, attempt])
        model = write_checkpoint(path, settings, rng)
        reference = continued_reference(model, rng)
        if reference is not None:
            break
    else:
        sys.exit(f"{name}: no clear continuation")
    if name in CONTEXTS:
        reference["context"] = CONTEXTS[name]
    write_json(os.path.join(path, "logits.json"), reference)
    spread = float(last_logits(model, reference["ids"]).std())
    print(f"{name}: spread of the logits {spread:.3g}, smallest gap {min(reference['gap']):.3g}")


def make_recall(root, out):
    model = load(os.path.join(root, "models", "recall"))
    with open(os.path.join(root, "tests/data/goldens/model/full.json"), encoding="utf-8") as file:
        prompts = {p["name"]: p["ids"] for p in json.load(file)["prompts"]}
    fixed = list(range(0, model.config.vocab_size, model.config.vocab_size // 64))
    cases = []
    for name, length in [
        ("prose1", 1),
        ("niah_multi0", 5),
        ("prose1", 60),
        *((n, len(i)) for n, i in prompts.items()),
    ]:
        ids = prompts[name][:length]
        logits = last_logits(model, ids)
        top = torch.topk(logits, 50)
        tokens, gap, after = greedy(model, ids, RECALL_CONTINUATION)
        cases.append(
            {
                "prompt": name,
                "n": length,
                "top50": [[i, v] for i, v in zip(top.indices.tolist(), numbers(top.values))],
                "fixed": numbers(logits[fixed]),
                "continuation": tokens,
                "gap": gap,
                "after_fixed": numbers(after[fixed]),
            }
        )
        print(f"recall, {name}[:{length}]: smallest gap {min(gap):.3g}")
    write_json(out, {"fixed_ids": fixed, "cases": cases})


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    root = sys.argv[1]
    folder = os.path.join(root, "tests/data/reference")
    with torch.no_grad():
        # The second list counts seeds for itself: a checkpoint more in one leaves those of the other as they are.
        for first, models in ((0, MODELS), (reference_models.FIRST_SEED, reference_models.MODELS)):
            for seed, (name, settings) in enumerate(models.items(), first):
                if name in sys.argv[2:] or len(sys.argv) == 2:
                    make_small(folder, name, settings, seed)
        if len(sys.argv) == 2:
            make_recall(root, os.path.join(folder, "recall_transformers.json"))


if __name__ == "__main__":
    main()
