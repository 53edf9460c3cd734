"""Makes the goldens: tiny random checkpoints, and what transformers computes from them.

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install -r requirements.txt
    /tmp/goldens/bin/python generate.py

The reference runs in float32 on one CPU thread, with eager attention and
without fused kernels. README.md says what the files hold.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import shutil

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import save_file
from transformers import DynamicCache, LlamaForCausalLM
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration

HERE = pathlib.Path(__file__).parent
PROMPT, GREEDY = 40, 64
STAGES = 20  # positions whose intermediates are kept: more than one KV block, convolution and chunk

# Were one of these importable, transformers would use its kernels in place of
# the plain formulas.
for kernels in ("fla", "causal_conv1d", "kernels", "flash_attn"):
    assert importlib.util.find_spec(kernels) is None, f"uninstall {kernels}: the reference must run without fused kernels"

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


# --- what the goldens are ---------------------------------------------------

VISION = dict(
    model_type="qwen3_5_vision", depth=1, hidden_size=16, hidden_act="gelu_pytorch_tanh", intermediate_size=24,
    num_heads=2, in_channels=3, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, num_position_embeddings=16,
)


def qwen_text(**changes):
    config = dict(
        model_type="qwen3_5_text", attention_bias=False, attention_dropout=0.0, attn_output_gate=True, dtype="float32",
        eos_token_id=1, full_attention_interval=4, hidden_act="silu", initializer_range=0.02,
        linear_conv_kernel_dim=4, mamba_ssm_dtype="float32", max_position_embeddings=512, rms_norm_eps=1e-6,
        use_cache=True,
    )
    return config | changes


def qwen_rope(**changes):
    return dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25, mrope_interleaved=True) | changes


def nested(text, tied, vision=VISION):
    vision = vision | dict(out_hidden_size=text["hidden_size"])
    return dict(
        architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", image_token_id=2, video_token_id=3,
        vision_start_token_id=4, vision_end_token_id=5, tie_word_embeddings=tied,
        text_config=text | dict(tie_word_embeddings=tied), vision_config=vision,
    )


GOLDENS = [
    # Grouped queries, tied; the scaling keeps, blends and divides frequencies.
    # The layout of the published Llama-3.2: rope_theta beside rope_scaling.
    dict(
        name="llama-tied", model=LlamaForCausalLM, seed=4, dtype=torch.float32,
        config=dict(
            architectures=["LlamaForCausalLM"], model_type="llama", torch_dtype="float32", attention_bias=False,
            mlp_bias=False, hidden_act="silu", hidden_size=64, intermediate_size=160, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=384, rms_norm_eps=1e-5,
            max_position_embeddings=1024, rope_theta=10000.0, tie_word_embeddings=True, bos_token_id=0,
            eos_token_id=[1, 2],
            rope_scaling=dict(
                rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
    ),
    # Untied, one KV head, heads wider together than the hidden state. The
    # layout of transformers 5: rope_parameters.
    dict(
        name="llama-untied", model=LlamaForCausalLM, seed=3, dtype=torch.float32,
        config=dict(
            architectures=["LlamaForCausalLM"], model_type="llama", dtype="float32", attention_bias=False,
            mlp_bias=False, hidden_act="silu", hidden_size=48, intermediate_size=112, num_hidden_layers=3,
            num_attention_heads=3, num_key_value_heads=1, head_dim=32, vocab_size=307, rms_norm_eps=1e-5,
            max_position_embeddings=256, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
            rope_parameters=dict(rope_type="default", rope_theta=500.0),
        ),
    ),
    # The published layout of Qwen3.5, with vision and MTP tensors beside the
    # text model, in shards whose names follow no pattern; layer kinds by interval.
    dict(
        name="qwen35-nested", model=Qwen3_5ForConditionalGeneration, seed=23, dtype=torch.float32, mtp=True,
        shards=["model.safetensors-00001-of-00003.safetensors", "tail.safetensors", "b.part.safetensors"],
        config=nested(
            qwen_text(
                hidden_size=64, intermediate_size=96, num_hidden_layers=8, num_attention_heads=4,
                num_key_value_heads=2, head_dim=32, vocab_size=320, linear_key_head_dim=32,
                linear_value_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
                mtp_num_hidden_layers=1, rope_parameters=qwen_rope(mrope_section=[2, 1, 1]),
            ),
            tied=True,
        ),
    ),
    # The flat layout of a text-only save, untied; three value heads to a key
    # head, which differ in width; layer kinds by list.
    dict(
        name="qwen35-flat", model=Qwen3_5ForCausalLM, seed=21, dtype=torch.float32,
        config=qwen_text(
            architectures=["Qwen3_5ForCausalLM"], hidden_size=48, intermediate_size=80, num_hidden_layers=6,
            num_attention_heads=2, num_key_value_heads=1, head_dim=64, vocab_size=300, linear_key_head_dim=16,
            linear_value_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=6, tie_word_embeddings=False,
            layer_types=["linear_attention", "linear_attention", "full_attention"] * 2,
            rope_parameters=qwen_rope(mrope_section=[4, 2, 2]),
        ),
    ),
    # The head widths of the published models, in bf16 with A_log and the gated
    # norm in f32. The reference upcasts the weights, and rounds keys and values
    # to bf16 as it caches them.
    dict(
        name="qwen35-bf16", model=Qwen3_5ForConditionalGeneration, seed=25, dtype=torch.bfloat16,
        config=nested(
            qwen_text(
                dtype="bfloat16", hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=2,
                num_key_value_heads=1, head_dim=256, vocab_size=320, linear_key_head_dim=128,
                linear_value_head_dim=128, linear_num_key_heads=1, linear_num_value_heads=2,
                layer_types=["linear_attention", "full_attention"] * 2, eos_token_id=[1, 2],
                rope_parameters=qwen_rope(rope_theta=10000000.0, mrope_section=[11, 11, 10]),
            ),
            tied=True,
        ),
    ),
]


# --- weights ----------------------------------------------------------------


def random_tensor(name, shape, generator, zero_centred):
    """A value for each parameter that no fault can hide behind: no norm is all
    ones, no decay is zero or total."""

    def uniform(low, high):
        return torch.rand(shape, generator=generator) * (high - low) + low

    def normal(mean, std):
        return torch.randn(shape, generator=generator) * std + mean

    leaf = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if leaf == "A_log":
        return uniform(-1, 2)
    if leaf == "dt_bias":
        return uniform(-5, 1)
    if leaf == "conv1d":
        return normal(0, 0.5)
    if leaf == "norm" and "linear_attn" in name:
        return uniform(0.5, 1.5)
    if len(shape) == 1:  # norms; biases of the vision tower
        return uniform(-0.5, 0.5) if zero_centred else uniform(0.5, 1.5)
    if leaf == "embed_tokens":
        return normal(0, 0.2)  # small, so that a tied model does not repeat its input
    fan_in = 1
    for n in shape[1:]:
        fan_in *= n
    return normal(0, 1.4 * fan_in**-0.5)


def stored_dtype(name, dtype):
    """The published checkpoints keep these two in float32."""
    return torch.float32 if name.endswith(("A_log", "linear_attn.norm.weight")) else dtype


def mtp_tensors(config):
    """Shapes of a multi-token-prediction head, as published beside the model."""
    h, i = config["text_config"]["hidden_size"], config["text_config"]["intermediate_size"]
    return {
        "mtp.fc.weight": (h, 2 * h), "mtp.norm.weight": (h,), "mtp.pre_fc_norm_hidden.weight": (h,),
        "mtp.layers.0.mlp.down_proj.weight": (h, i), "mtp.layers.0.input_layernorm.weight": (h,),
    }


def write_checkpoint(golden, folder):
    generator = torch.Generator().manual_seed(golden["seed"])
    cls, config = golden["model"], golden["config"]
    with torch.device("meta"):
        model = cls(cls.config_class(**config))
    shapes = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        del shapes["lm_head.weight"]
    if golden.get("mtp"):
        shapes |= mtp_tensors(config)
    zero_centred = "qwen" in config["model_type"]
    tensors = {
        name: random_tensor(name, shape, generator, zero_centred).to(stored_dtype(name, golden["dtype"]))
        for name, shape in shapes.items()
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shards = golden.get("shards", ["model.safetensors"])
    weight_map = {name: shards[i % len(shards)] for i, name in enumerate(tensors)}  # layers straddle shards
    for shard in shards:
        save_file({n: t for n, t in tensors.items() if weight_map[n] == shard}, folder / shard, {"format": "pt"})
    if len(shards) > 1:
        index = dict(metadata=dict(total_size=sum(t.nbytes for t in tensors.values())), weight_map=weight_map)
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


# --- reference --------------------------------------------------------------


class BF16Cache(DynamicCache):
    """Keys and values as a bf16 cache returns them."""

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(key_states.bfloat16().float(), value_states.bfloat16().float(), *args, **kwargs)


def record_stages(model, stages):
    """Hooks that store the activations which the engine can show, under its names."""
    text = getattr(model.model, "language_model", model.model)
    hooks = []

    def output(module, put):
        hooks.append(module.register_forward_hook(lambda m, args, out: put(out[0] if isinstance(out, tuple) else out)))

    def source(module, put):
        hooks.append(module.register_forward_pre_hook(lambda m, args: put(args[0])))

    def keep(stage):
        return lambda x: stages.setdefault(stage, []).append(x[0, :STAGES].clone())

    output(text.embed_tokens, keep("embed"))
    for i, layer in enumerate(text.layers):
        if hasattr(layer, "self_attn"):
            m = layer.self_attn
            parts, out = [m.q_proj, m.k_proj, m.v_proj], m.o_proj
        else:
            m = layer.linear_attn
            parts, out = [m.in_proj_qkv, m.in_proj_z, m.in_proj_b, m.in_proj_a], m.out_proj
        for part in parts:
            output(part, keep(f"layers.{i}.proj"))
        source(out, keep(f"layers.{i}.mixed"))
        source(layer.post_attention_layernorm, keep(f"layers.{i}.mixer"))
        output(layer, keep(f"layers.{i}.mlp"))
    return hooks


@torch.inference_mode()
def write_expected(golden, folder):
    model, info = golden["model"].from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert all(k.startswith("mtp.") for k in info["unexpected_keys"]), info
    model.eval()
    vocab = model.get_output_embeddings().weight.shape[0]
    prompt = torch.randperm(vocab, generator=torch.Generator().manual_seed(100 + golden["seed"]))[:PROMPT]
    new_cache = BF16Cache if golden["dtype"] == torch.bfloat16 else DynamicCache

    stages = {}
    hooks = record_stages(model, stages)
    cache = new_cache(config=model.config)
    prompt_logits = model(prompt[None], cache=cache, use_cache=True).logits[0]
    for hook in hooks:
        hook.remove()

    greedy, rows = [], [prompt_logits[-1]]
    while True:
        greedy.append(int(rows[-1].argmax()))
        if len(greedy) == GREEDY:
            break
        rows.append(model(torch.tensor([[greedy[-1]]]), cache=cache, use_cache=True).logits[0, -1])
    greedy_logits = torch.stack(rows)
    top = greedy_logits.topk(2).values
    margins = (top[:, 0] - top[:, 1]).tolist()

    # The reference agrees with itself, however the tokens were fed; and greedy
    # tokens say something only if they vary and are no coin flips.
    whole = model(torch.cat([prompt, torch.tensor(greedy[:-1])])[None], cache=new_cache(config=model.config), use_cache=True)
    drift = (whole.logits[0, PROMPT - 1 :] - greedy_logits).abs().max().item()
    print(f"{golden['name']:14} drift {drift:.1e}, margin ≥ {min(margins):.4f}, {len(set(greedy))} distinct tokens, "
          f"|logit| ≤ {greedy_logits.abs().max():.1f}")
    assert drift < (1e-3 if golden["dtype"] == torch.bfloat16 else 1e-4), drift
    assert min(margins) > 0.02 and len(set(greedy)) > 16, "choose another seed"

    (folder / "expected").mkdir()
    tensors = {stage: torch.cat(parts, dim=-1).contiguous() for stage, parts in stages.items()}
    tensors |= {"prompt_logits": prompt_logits.clone(), "greedy_logits": greedy_logits}
    save_file(tensors, folder / "expected" / "tensors.safetensors")
    tokens = dict(prompt=prompt.tolist(), greedy=greedy, margins=[round(m, 5) for m in margins])
    lines = ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in tokens.items())
    (folder / "expected" / "tokens.json").write_text("{\n" + lines + "\n}\n")


def main():
    transformers.logging.set_verbosity_error()
    for golden in GOLDENS:
        folder = HERE / golden["name"]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        write_checkpoint(golden, folder)
        write_expected(golden, folder)
    versions = {p: importlib.metadata.version(p) for p in ("torch", "transformers", "safetensors", "numpy")}
    versions["python"] = platform.python_version()
    (HERE / "versions.json").write_text(json.dumps(versions, indent=2, sort_keys=True) + "\n")
    # The writer of safetensors makes private files.
    for f in HERE.rglob("*.safetensors"):
        f.chmod(0o644)
    files = sorted(f for f in HERE.rglob("*") if f.is_file() and f.suffix in (".json", ".safetensors"))
    sums = (f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.relative_to(HERE).as_posix()}\n" for f in files)
    (HERE / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main()
