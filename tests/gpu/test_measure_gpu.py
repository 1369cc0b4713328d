"""Small heads of a network on a GPU are measured on the CPU: a GPU takes longer to be told what to do than to do it."""

from __future__ import annotations

import pytest
import torch

from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.spectra import measure

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: run `make test-gpu` on a machine with one"),
]


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-bloom", "tiny-bert"])
def test_small_heads_leave_the_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    build = measure.DenseOperator

    def watched(query, key, *, scale, view):
        seen.append((query.device.type, key.device.type, view.device.type))
        return build(query, key, scale=scale, view=view)

    monkeypatch.setattr(measure, "DenseOperator", watched)
    network = Transformer(preset(name), seed=1).eval()
    text = torch.randint(96, (60,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = measure.spectrum(Model(network.config, network), text, baseline=False)
    found = measure.spectrum(Model(network.config, network.cuda()), text, baseline=False)
    assert len(seen) == 2 * len(found.heads)
    assert set(seen) == {("cpu", "cpu", "cpu")}
    for ours, theirs in zip(found.heads, wanted.heads, strict=True):
        assert ours.measured.spectrum.energy == pytest.approx(theirs.measured.spectrum.energy, rel=1e-3)
        assert ours.measured.statistics.entropy == pytest.approx(theirs.measured.statistics.entropy, abs=1e-3)
