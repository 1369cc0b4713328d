"""Configs as released checkpoints of Llama, Mistral and Qwen have them, each with the model that it describes."""

from __future__ import annotations

from typing import Any

from pellucid.model.config import (
    Biases,
    Classify,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    Pool,
    Rotary,
    Tag,
    YarnScaling,
)
from pellucid.model.presets import llama, preset


def rotary(base: float, scaling: Any = None) -> Rotary:
    return Rotary(base=base, scaling=scaling, precision="float32")


def changed(config: ModelConfig, **values: Any) -> ModelConfig:
    return ModelConfig(**config.model_dump() | values)


ENDS = {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "use_cache": True, "hidden_act": "silu"}
LLAMA = ENDS | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0",
    "vocab_size": 32000,
}
MISTRAL = ENDS | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0",
}
QWEN = ENDS | {
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
}
LLAMA_31_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def sizes(width: int, hidden: int, blocks: int, heads: int, groups: int, context: int, **values: Any) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "max_position_embeddings": context,
    } | values


LLAMA_1 = {
    "architectures": ["LLaMAForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "initializer_range": 0.02,
    "max_sequence_length": 2048,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "pad_token_id": -1,
    "rms_norm_eps": 1e-06,
    "torch_dtype": "float16",
    "transformers_version": "4.27.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
LLAMA_2 = LLAMA | sizes(4096, 11008, 32, 32, 32, 4096, _name_or_path="meta-llama/Llama-2-7b-hf")
CODE_LLAMA = LLAMA | sizes(4096, 11008, 32, 32, 32, 16384, rope_theta=1000000, vocab_size=32016)
LLAMA_3 = LLAMA | sizes(4096, 14336, 32, 32, 8, 8192, attention_bias=False, attention_dropout=0.0, vocab_size=128256)
LLAMA_3 |= {
    "rope_theta": 500000.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "transformers_version": "4.40.0.dev0",
}
LLAMA_31 = LLAMA_3 | {"max_position_embeddings": 131072, "mlp_bias": False, "rope_scaling": LLAMA_31_ROPE}
LLAMA_31 |= {"eos_token_id": [128001, 128008, 128009], "pretraining_tp": 1}
LLAMA_32 = LLAMA_31 | sizes(2048, 8192, 16, 32, 8, 131072, head_dim=64, tie_word_embeddings=True)
LLAMA_32 |= {"rope_scaling": LLAMA_31_ROPE | {"factor": 32.0}}
LLAMA_32_UNSLOTH = LLAMA_32 | {"pad_token_id": 128004, "unsloth_fixed": True, "unsloth_version": "2025.1.1"}
LLAMA_32_NEW = {
    key: value for key, value in LLAMA_32.items() if key not in ("rope_theta", "rope_scaling", "torch_dtype")
}
LLAMA_32_NEW |= {"rope_parameters": LLAMA_31_ROPE | {"factor": 32.0, "rope_theta": 500000.0}, "dtype": "bfloat16"}
LLAMA_32_NEW |= {"transformers_version": "5.0.0", "pad_token_id": None}
TINY_LLAMA = LLAMA | sizes(2048, 5632, 22, 32, 4, 2048, attention_bias=False, rope_theta=10000.0)
SMOL = LLAMA | sizes(576, 1536, 30, 9, 3, 8192, is_llama_config=True, rope_interleaved=False, rope_theta=100000)
SMOL |= {"initializer_range": 0.041666666666666664, "tie_word_embeddings": True, "vocab_size": 49152}
SMOL |= {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}, "mlp_bias": False}
DEEPSEEK_CODER = LLAMA | sizes(2048, 5504, 24, 16, 16, 16384, rope_theta=100000, vocab_size=32256)
DEEPSEEK_CODER |= {"rope_scaling": {"factor": 4.0, "type": "linear"}, "rms_norm_eps": 1e-06}
YARN_LLAMA_ROPE = {"factor": 16.0, "finetuned": True, "original_max_position_embeddings": 4096, "type": "yarn"}
YARN_LLAMA = LLAMA_2 | {"max_position_embeddings": 65536, "rope_scaling": YARN_LLAMA_ROPE}
YARN_LLAMA |= {"auto_map": {"AutoModelForCausalLM": "modeling_llama_together_yarn.LlamaForCausalLM"}}
REWARD = LLAMA_3 | {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
REWARD |= {"label2id": {"LABEL_0": 0}, "pad_token_id": 128256, "vocab_size": 128264}
TAGGER = TINY_LLAMA | {"architectures": ["LlamaForTokenClassification"], "id2label": {"0": "O", "1": "B", "2": "I"}}

MISTRAL_1 = MISTRAL | {"rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 32000}
MISTRAL_2 = MISTRAL | {"attention_dropout": 0.0, "rope_theta": 1000000.0, "sliding_window": None, "vocab_size": 32000}
MISTRAL_3 = MISTRAL_2 | {"vocab_size": 32768, "head_dim": None}
NEMO = MISTRAL_2 | sizes(5120, 14336, 40, 32, 8, 131072, head_dim=128, vocab_size=131072)
E5_MISTRAL = MISTRAL_1 | {"_name_or_path": "e5-mistral-7b", "architectures": ["MistralModel"], "pad_token_id": 2}

QWEN2 = QWEN | sizes(896, 4864, 24, 14, 2, 131072, model_type="qwen2", architectures=["Qwen2ForCausalLM"])
QWEN2 |= {"max_window_layers": 24, "sliding_window": 131072, "tie_word_embeddings": True, "vocab_size": 151936}
QWEN25 = QWEN2 | sizes(3584, 18944, 28, 28, 4, 131072, tie_word_embeddings=False, use_mrope=False, vocab_size=152064)
QWEN25 |= {"max_window_layers": 28}
QWEN25_YARN_ROPE = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
QWEN25_YARN = QWEN25 | {"rope_scaling": QWEN25_YARN_ROPE}
QWEN25_NEW = {key: value for key, value in QWEN25.items() if key not in ("rope_theta", "use_mrope", "torch_dtype")}
QWEN25_NEW |= {"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "dtype": "bfloat16"}
QWEN25_NEW |= {"layer_types": ["full_attention"] * 28, "sliding_window": None, "transformers_version": "5.0.0"}
QWEN3 = QWEN | sizes(1024, 3072, 28, 16, 8, 40960, model_type="qwen3", architectures=["Qwen3ForCausalLM"])
QWEN3 |= {"attention_bias": False, "head_dim": 128, "max_window_layers": 28, "rope_scaling": None, "vocab_size": 151936}
QWEN3 |= {"sliding_window": None, "tie_word_embeddings": True, "rope_theta": 1000000, "transformers_version": "4.51.0"}

TINY = llama(22, 2048, 32, 4, 5632, context=2048)
SEVEN = llama(32, 4096, 32, 8, 14_336, 32_000, 32_768)
QWEN2_BIASES = Biases(output=False, feed_forward=False)
OURS_25 = changed(
    llama(28, 3584, 28, 4, 18_944, 152_064, 131_072, rotary(1e6), epsilon=1e-6), biases=QWEN2_BIASES.model_dump()
)

RELEASED: dict[str, tuple[dict[str, Any], ModelConfig]] = {
    "Llama 1": (LLAMA_1, changed(llama(32, 4096, 32, 32, 11_008, epsilon=1e-6), context=None, key_value_heads=None)),
    "Llama 2": (LLAMA_2, preset("llama-2-7b")),
    "CodeLlama": (CODE_LLAMA, llama(32, 4096, 32, 32, 11_008, 32_016, 16_384, rotary(1e6))),
    "Llama 3": (LLAMA_3, preset("llama-3-8b")),
    "Llama 3.1": (
        LLAMA_31,
        llama(
            32,
            4096,
            32,
            8,
            14_336,
            128_256,
            131_072,
            rotary(5e5, Llama3Scaling(factor=8.0, original_context=8192, low=1.0, high=4.0)),
        ),
    ),
    "Llama 3.2": (LLAMA_32, preset("llama-3.2-1b")),
    "Llama 3.2 of Unsloth": (LLAMA_32_UNSLOTH, preset("llama-3.2-1b")),
    "Llama 3.2 in new words": (LLAMA_32_NEW, preset("llama-3.2-1b")),
    "TinyLlama": (TINY_LLAMA, TINY),
    "SmolLM2": (SMOL, llama(30, 576, 9, 3, 1536, 49_152, 8192, rotary(1e5), tied=True)),
    "DeepSeek Coder": (
        DEEPSEEK_CODER,
        llama(24, 2048, 16, 16, 5504, 32_256, 16_384, rotary(1e5, LinearScaling(factor=4.0)), epsilon=1e-6),
    ),
    "Yarn Llama 2": (
        YARN_LLAMA,
        llama(
            32,
            4096,
            32,
            32,
            11_008,
            context=65_536,
            rotary=rotary(1e4, YarnScaling(factor=16.0, original_context=4096)),
        ),
    ),
    "a reward model": (
        REWARD,
        changed(
            preset("llama-3-8b"),
            vocab=128_264,
            head=Classify(labels=1, pooling="last", hidden=None, bias=False).model_dump(),
        ),
    ),
    "a tagger": (TAGGER, changed(TINY, head=Tag(labels=3).model_dump())),
    "Mistral v0.1": (MISTRAL_1, changed(SEVEN, window=4096)),
    "Mistral v0.2": (MISTRAL_2, changed(SEVEN, position=rotary(1e6).model_dump())),
    "Mistral v0.3": (MISTRAL_3, changed(SEVEN, position=rotary(1e6).model_dump(), vocab=32_768)),
    "Mistral Nemo": (
        NEMO,
        changed(llama(40, 5120, 32, 8, 14_336, 131_072, 131_072, rotary(1e6)), head_width=128),
    ),
    "E5 Mistral": (E5_MISTRAL, changed(SEVEN, window=4096, head=Pool(pooling="last").model_dump())),
    "Qwen2": (
        QWEN2,
        changed(
            llama(24, 896, 14, 2, 4864, 151_936, 131_072, rotary(1e6), epsilon=1e-6, tied=True),
            biases=QWEN2_BIASES.model_dump(),
        ),
    ),
    "Qwen2.5": (QWEN25, OURS_25),
    "Qwen2.5 in new words": (QWEN25_NEW, OURS_25),
    "Qwen2.5 with Yarn": (
        QWEN25_YARN,
        changed(OURS_25, position=rotary(1e6, YarnScaling(factor=4.0, original_context=32_768)).model_dump()),
    ),
    "Qwen3": (
        QWEN3,
        changed(
            llama(28, 1024, 16, 8, 3072, 151_936, 40_960, rotary(1e6), epsilon=1e-6, tied=True),
            head_width=128,
            query_key_norm=True,
        ),
    ),
}
