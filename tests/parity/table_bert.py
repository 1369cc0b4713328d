"""The rows of BERT, DistilBERT, RoBERTa and its two relatives."""

from __future__ import annotations

from tests.parity.case import Case

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
DISTIL_SIZE = {
    "vocab_size": 64,
    "dim": 32,
    "n_heads": 4,
    "n_layers": 2,
    "hidden_dim": 48,
    "max_position_embeddings": 40,
}
# The reference takes slot 0 for the first token, which is padding where padding comes first.
WHOLE_TEXT = ("pool", "first", "classify")


def bert(name: str, model: str, kind: str, **options: object) -> Case:
    paddings = ("right",) if kind in WHOLE_TEXT else ("left", "right")
    return Case(f"bert {name}", model, "BertConfig", SIZE | options, kind, takes_positions=True, paddings=paddings)


def distilbert(name: str, model: str, kind: str, **options: object) -> Case:
    paddings = ("right",) if kind in WHOLE_TEXT else ("left", "right")
    size = DISTIL_SIZE | options
    return Case(f"distilbert {name}", model, "DistilBertConfig", size, kind, takes_positions=True, paddings=paddings)


def roberta(name: str, model: str, kind: str, config: str = "RobertaConfig", **options: object) -> Case:
    paddings = ("right",) if kind in WHOLE_TEXT else ("left", "right")
    size = SIZE | {"type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
    return Case(f"roberta {name}", model, config, size | options, kind, paddings=paddings)


CASES = [
    bert("masked", "BertForMaskedLM", "masked"),
    bert("masked, gelu (tanh)", "BertForMaskedLM", "masked", hidden_act="gelu_new"),
    bert("masked, another gelu (tanh)", "BertForMaskedLM", "masked", hidden_act="gelu_pytorch_tanh"),
    bert("masked, relu", "BertForMaskedLM", "masked", hidden_act="relu"),
    bert("masked, silu", "BertForMaskedLM", "masked", hidden_act="silu"),
    bert("masked, free unembedding", "BertForMaskedLM", "masked", tie_word_embeddings=False),
    bert("masked, large epsilon", "BertForMaskedLM", "masked", layer_norm_eps=1e-2),
    bert("masked, four segments", "BertForMaskedLM", "masked", type_vocab_size=4),
    bert("pooled", "BertModel", "pool"),
    bert("tagger", "BertForTokenClassification", "tag", num_labels=5),
    bert("classifier", "BertForSequenceClassification", "classify", num_labels=3),
    bert("regression", "BertForSequenceClassification", "classify", num_labels=1),
    distilbert("masked", "DistilBertForMaskedLM", "masked"),
    distilbert("masked, relu", "DistilBertForMaskedLM", "masked", activation="relu"),
    distilbert("masked, free unembedding", "DistilBertForMaskedLM", "masked", tie_word_embeddings=False),
    distilbert("masked, sinusoidal", "DistilBertForMaskedLM", "masked", sinusoidal_pos_embds=True),
    distilbert("bare", "DistilBertModel", "first"),
    distilbert("tagger", "DistilBertForTokenClassification", "tag", num_labels=5),
    distilbert("classifier", "DistilBertForSequenceClassification", "classify", num_labels=3),
    roberta("masked", "RobertaForMaskedLM", "masked"),
    roberta("masked, relu blocks", "RobertaForMaskedLM", "masked", hidden_act="relu"),
    roberta("masked, free unembedding", "RobertaForMaskedLM", "masked", tie_word_embeddings=False),
    roberta("masked, padding is id 3", "RobertaForMaskedLM", "masked", pad_token_id=3),
    roberta("masked, padding is id 0", "RobertaForMaskedLM", "masked", pad_token_id=0),
    roberta("pooled", "RobertaModel", "pool"),
    roberta("tagger", "RobertaForTokenClassification", "tag", num_labels=5),
    roberta("classifier", "RobertaForSequenceClassification", "classify", num_labels=3),
    roberta("many languages, masked", "XLMRobertaForMaskedLM", "masked", "XLMRobertaConfig"),
    roberta("many languages, tagger", "XLMRobertaForTokenClassification", "tag", "XLMRobertaConfig", num_labels=5),
    roberta("French, masked", "CamembertForMaskedLM", "masked", "CamembertConfig"),
    roberta("French, classifier", "CamembertForSequenceClassification", "classify", "CamembertConfig", num_labels=3),
]
