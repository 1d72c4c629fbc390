"""Checkpoints of make_transformers_vectors.py that came after its list was long enough: settings by name."""

SHAPE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "float32"}

# Granite 4 without experts and state spaces, which its configurations speak of all the same.
GRANITE4 = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    **SHAPE,
    "intermediate_size": 48,
    "shared_intermediate_size": 48,
    "tie_word_embeddings": True,
    "layer_types": ["attention", "attention"],
    "position_embedding_type": "rope",
    "rope_theta": 10000000,
    "rope_scaling": None,
    "rms_norm_eps": 1e-05,
    "attention_bias": False,
    "embedding_multiplier": 3,
    "residual_multiplier": 0.6,
    "logits_scaling": 2,
    "attention_multiplier": 0.3,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "normalization_function": "rmsnorm",
    "init_method": "mup",
    "output_router_logits": False,
    "router_aux_loss_coef": 0.01,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 4,
    "mamba_proj_bias": False,
}

FIRST_SEED = 43  # of the first of MODELS; each takes the next

MODELS = {
    "granite4": GRANITE4,
    "granite4_nope": {
        **GRANITE4,
        "torch_dtype": "bfloat16",
        "intermediate_size": 80,
        "tie_word_embeddings": False,
        "position_embedding_type": "nope",
    },
    # Prompt and continuation are as long as it was trained for.
    "llama_dynamic": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **SHAPE,
        "intermediate_size": 48,
        "tie_word_embeddings": False,
        "max_position_embeddings": 166,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
    },
}
