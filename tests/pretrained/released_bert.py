"""The configs of released encoders, key by key, as different versions of transformers wrote them."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
POOLER_OF_THE_PAPER = {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
}
# transformers 2 wrote every attribute that any model had.
GENERATION_OF_2 = {
    "bad_words_ids": None,
    "bos_token_id": None,
    "do_sample": False,
    "eos_token_ids": None,
    "finetuning_task": None,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "length_penalty": 1.0,
    "max_length": 20,
    "num_beams": 1,
    "num_return_sequences": 1,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_past": True,
    "prefix": None,
    "pruned_heads": {},
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "torchscript": False,
    "use_bfloat16": False,
    "xla_device": None,
}
ROBERTA_BASE = BASE | {
    "architectures": ["RobertaForMaskedLM"],
    "bos_token_id": 0,
    "eos_token_id": 2,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514,
    "model_type": "roberta",
    "pad_token_id": 1,
    "type_vocab_size": 1,
    "vocab_size": 50265,
}
DISTILBERT_BASE: dict[str, Any] = {
    "activation": "gelu",
    "architectures": ["DistilBertForMaskedLM"],
    "attention_dropout": 0.1,
    "dim": 768,
    "dropout": 0.1,
    "hidden_dim": 3072,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "model_type": "distilbert",
    "n_heads": 12,
    "n_layers": 6,
    "pad_token_id": 0,
    "qa_dropout": 0.1,
    "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "transformers_version": "4.10.0.dev0",
    "vocab_size": 30522,
}
NAMES = ["O", "B-MISC", "I-MISC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]
ENTITIES = {"id2label": {str(i): name for i, name in enumerate(NAMES)}, "label2id": {n: i for i, n in enumerate(NAMES)}}
SENTIMENT = {"id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "label2id": {"NEGATIVE": 0, "POSITIVE": 1}}

# The config, the family to name where it does not name its own, and the head that it must read as.
RELEASED: dict[str, tuple[dict[str, Any], str, str]] = {
    "bert, first release": (BASE, "bert", "pool"),
    "bert-base-uncased": (
        BASE
        | {
            "architectures": ["BertForMaskedLM"],
            "gradient_checkpointing": False,
            "layer_norm_eps": 1e-12,
            "model_type": "bert",
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
            "transformers_version": "4.6.0.dev0",
            "use_cache": True,
        },
        "bert",
        "unembed",
    ),
    "bert-large-cased": (
        BASE
        | POOLER_OF_THE_PAPER
        | {
            "architectures": ["BertForMaskedLM"],
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "layer_norm_eps": 1e-12,
            "model_type": "bert",
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "pad_token_id": 0,
            "vocab_size": 28996,
        },
        "bert",
        "unembed",
    ),
    "bert tagger, transformers 2": (
        BASE
        | GENERATION_OF_2
        | POOLER_OF_THE_PAPER
        | ENTITIES
        | {
            "_num_labels": 9,
            "num_labels": 9,
            "architectures": ["BertForTokenClassification"],
            "layer_norm_eps": 1e-12,
            "model_type": "bert",
            "pad_token_id": 0,
        },
        "bert",
        "tag",
    ),
    "bert, transformers 5": (
        BASE
        | {
            "add_cross_attention": False,
            "architectures": ["BertModel"],
            "bos_token_id": None,
            "classifier_dropout": None,
            "dtype": "float32",
            "eos_token_id": None,
            "is_decoder": False,
            "layer_norm_eps": 1e-12,
            "model_type": "bert",
            "pad_token_id": 0,
            "tie_word_embeddings": True,
            "transformers_version": "5.17.0",
            "use_cache": True,
        },
        "bert",
        "pool",
    ),
    "cross-encoder": (
        BASE
        | {
            "_name_or_path": "microsoft/MiniLM-L-12-H384-uncased",
            "architectures": ["BertForSequenceClassification"],
            "gradient_checkpointing": False,
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
            "model_type": "bert",
            "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
            "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0.dev0"},
        },
        "bert",
        "classify",
    ),
    "distilbert-base-uncased": (DISTILBERT_BASE, "distilbert", "unembed"),
    "distilbert sst-2": (
        DISTILBERT_BASE
        | SENTIMENT
        | {
            "architectures": ["DistilBertForSequenceClassification"],
            "finetuning_task": "sst-2",
            "output_past": True,
            "torch_dtype": "float32",
        },
        "distilbert",
        "classify",
    ),
    "roberta-base": (ROBERTA_BASE, "roberta", "unembed"),
    "roberta sentiment, transformers 3": (
        ROBERTA_BASE
        | SENTIMENT
        | {"architectures": ["RobertaForSequenceClassification"], "gradient_checkpointing": False, "xla_device": None},
        "roberta",
        "classify",
    ),
    "roberta of question answering, as an encoder": (
        ROBERTA_BASE | {"architectures": ["RobertaModel"], "language": "english", "name": "Roberta"},
        "roberta",
        "pool",
    ),
    "xlm-roberta-base": (
        ROBERTA_BASE
        | {
            "architectures": ["XLMRobertaForMaskedLM"],
            "model_type": "xlm-roberta",
            "output_past": True,
            "position_embedding_type": "absolute",
            "transformers_version": "4.17.0.dev0",
            "use_cache": True,
            "vocab_size": 250002,
        },
        "xlm-roberta",
        "unembed",
    ),
    "camembert tagger": (
        ROBERTA_BASE
        | ENTITIES
        | {
            "architectures": ["CamembertForTokenClassification"],
            "eos_token_id": 6,
            "bos_token_id": 5,
            "model_type": "camembert",
            "output_past": True,
            "tokenizer_class": "CamembertTokenizer",
            "vocab_size": 32005,
        },
        "camembert",
        "tag",
    ),
}
