"""Writes peft_adapters.npz with adapters saved by PEFT: `python tests/golden/make_peft_golden.py`.

Only this script needs PyTorch and PEFT. The base has the weights of qwen3_parity.npz. Adapters are multiples of 1/1024,
and alpha is not the rank, so that a forgotten scale shows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import peft
import torch
from make_qwen3_golden import build
from safetensors.numpy import load_file
from transformers import Qwen3ForCausalLM

HERE = Path(__file__).parent
RANK, ALPHA, TARGETS, BASE = 3, 12, ["v_proj", "q_proj", "down_proj"], "some/base"


def load_base() -> Qwen3ForCausalLM:
    """The untied model of the parity numbers."""
    stored = np.load(HERE / "qwen3_parity.npz")
    weights = {name.removeprefix("weights/"): stored[name] for name in stored.files if name.startswith("weights/")}
    return build(1e6, False, weights)


def main() -> None:
    """Adapt the base, save the adapters, and write what was saved and the logits beside this script."""
    rng = np.random.default_rng(20250516)
    config = peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, task_type="CAUSAL_LM", base_model_name_or_path=BASE
    )
    base = load_base()
    ids = torch.tensor(rng.integers(0, base.config.vocab_size, (2, 6)))
    before = base(ids).logits
    model = peft.get_peft_model(base, config).eval()
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            drawn = np.round(rng.normal(0, 0.1, parameter.shape) * 1024) / 1024
            parameter.data = torch.tensor(drawn.astype(np.float32))
    after = model(ids).logits
    with tempfile.TemporaryDirectory() as folder:
        model.peft_config["default"].base_model_name_or_path = BASE
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "adapter_model.safetensors")
        entries = (Path(folder) / "adapter_config.json").read_text(encoding="utf-8")
    path = HERE / "peft_adapters.npz"
    np.savez_compressed(
        path,
        config=np.array(entries),
        ids=ids.numpy().astype(np.int32),
        base_logits=before.detach().numpy(),
        logits=after.detach().numpy(),
        **{f"file/{key}": value for key, value in tensors.items()},
    )
    print(f"wrote {path}, {path.stat().st_size} bytes; logits moved by {float((after - before).abs().max()):.2f}")


if __name__ == "__main__":
    main()
