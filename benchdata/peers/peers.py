"""Times decode steps and prefill of this engine beside llama.cpp and PyTorch, on one CPU.

    python3 benchdata/peers/peers.py                     measure, and print the table
    python3 benchdata/peers/peers.py --record MACHINE    also write MACHINE/results.json and its table in README.md

All run the same random bf16 weights in the shape of a Llama model, with the
same number of threads, on the same prompts. Each is a process of its own that
waits until it is asked for steps; the driver takes turns between them, so that
what the machine does meanwhile happens to all. README.md says what is counted.

Needs Go, and for the first run a C++ compiler and cmake: llama.cpp is built
from source for this machine. Everything is kept in $BATCHPROOF_PEERS, by
default ~/.cache/batchproof-peers: environment, checkpoints, binaries.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = pathlib.Path(os.environ.get("BATCHPROOF_PEERS", "~/.cache/batchproof-peers")).expanduser()

SHAPES = {
    "llama-3.2-1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                         num_key_value_heads=8, head_dim=64, vocab_size=128256),
    "llama-216m": dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=16,
                       num_key_value_heads=4, head_dim=64, vocab_size=32768),
    "llama-tiny": dict(hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                       num_key_value_heads=2, head_dim=64, vocab_size=1024),
}
PREFILL = "prefill"  # beside the widths, what is timed
OURS = "batchproof"
ENGINES = [OURS, "llama.cpp", "llama.cpp, flash attention", "PyTorch bf16", "PyTorch f32"]

# The part of the machine that others may take, for a run to be worth keeping.
QUIET = 0.05

# What the engine aims at: against the fastest variant of a peer, at a width.
AIMS = [("llama.cpp", 1, 1.1), ("llama.cpp", 8, 1.5), ("PyTorch", 8, 3.0)]


# --- the peers, each in a process with the pinned packages ------------------

class LlamaCpp:
    """llama.cpp through its C interface: one context for each width, and one for prefill."""

    def __init__(self, folder, threads, context, flash):
        import llama_cpp
        import numpy

        self.c, self.np, self.threads, self.context, self.flash = llama_cpp, numpy, threads, context, flash
        self.quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.quiet, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(folder / "model.gguf").encode(), params)
        assert self.model, f"llama.cpp cannot load {folder / 'model.gguf'}"
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.info = llama_cpp.llama_print_system_info().decode().strip()
        self.alone = None  # where prefill runs

    def open(self, rows, context, tokens):
        """A context for rows, where one call computes up to so many tokens at once."""
        c = self.c
        params = c.llama_context_default_params()
        params.n_seq_max, params.n_ctx = rows, rows * context
        params.n_batch = params.n_ubatch = max(256, tokens)
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = int(self.flash)
        params.no_perf = True
        state = argparse.Namespace(ctx=c.llama_init_from_model(self.model, params), rows=rows, past=0)
        assert state.ctx, "llama.cpp cannot make a context"
        state.batch = c.llama_batch_init(tokens, 0, 1)
        return state

    def begin(self, prompts):
        state = self.open(len(prompts), self.context, sum(map(len, prompts)))
        self.decode(state, prompts)
        return state

    def decode(self, state, tokens):
        """One step: the tokens of each row, logits after its last. Timed is what llama.cpp does."""
        c, b, n, last = self.c, state.batch, 0, []
        for row, ids in enumerate(tokens):
            for i, token in enumerate(ids):
                b.token[n], b.pos[n], b.n_seq_id[n], b.logits[n] = token, state.past + i, 1, i == len(ids) - 1
                b.seq_id[n][0] = row
                n += 1
            last.append(n - 1)
        b.n_tokens = n
        start = time.perf_counter()
        failed = c.llama_decode(state.ctx, b)
        c.llama_synchronize(state.ctx)
        seconds = time.perf_counter() - start
        assert not failed, f"llama_decode: {failed}"
        state.past += len(tokens[0])
        state.logits = [self.np.ctypeslib.as_array(c.llama_get_logits_ith(state.ctx, i), (self.vocab,)) for i in last]
        state.next = [[int(x.argmax())] for x in state.logits]
        return seconds

    def step(self, state):
        return self.decode(state, state.next)

    def prefill(self, prompt):
        self.alone = self.alone or self.open(1, len(prompt), len(prompt))
        self.c.llama_memory_clear(self.c.llama_get_memory(self.alone.ctx), True)
        self.alone.past = 0
        return self.decode(self.alone, [prompt]), self.alone.logits[0]


class PyTorch:
    """transformers on PyTorch, eager, with its default attention and cache."""

    def __init__(self, folder, threads, context, dtype):
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        import transformers

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        transformers.logging.set_verbosity_error()
        self.torch, self.transformers = torch, transformers
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        amx = " and AMX" if torch.cpu.get_capabilities().get("amx_bf16") else ""  # of oneDNN
        self.info = f"{torch.backends.cpu.get_cpu_capability()}{amx}, {torch.get_num_threads()} threads, attention: {self.model.config._attn_implementation}"

    def open(self):
        return argparse.Namespace(cache=self.transformers.DynamicCache(config=self.model.config))

    def begin(self, prompts):
        state = self.open()
        self.decode(state, self.torch.tensor(prompts))
        return state

    def decode(self, state, ids):
        start = time.perf_counter()
        with self.torch.inference_mode():
            state.logits = self.model(ids, cache=state.cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        seconds = time.perf_counter() - start
        state.next = state.logits.argmax(-1, keepdim=True)
        return seconds

    def step(self, state):
        return self.decode(state, state.next)

    def prefill(self, prompt):
        state = self.open()
        return self.decode(state, self.torch.tensor([prompt])), state.logits[0].float().numpy()


def worker(engine, folder, threads, context):
    """Answers requests as the command steps does."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    if engine.startswith("llama.cpp"):
        peer = LlamaCpp(folder, threads, context, flash="flash" in engine)
    else:
        peer = PyTorch(folder, threads, context, dict(bf16="bfloat16", f32="float32")[engine.split()[-1]])
    states = {}

    def answer(what):
        print(json.dumps(what), file=out, flush=True)

    answer(dict(info=peer.info))
    for line in sys.stdin:
        request = json.loads(line)
        if "prefill" in request:
            seconds, logits = zip(*(peer.prefill(request["prefill"]) for _ in range(request["times"])))
            values = logits[-1]
            ids = values.argsort()[::-1][:5]
            answer(dict(seconds=seconds, ids=[int(i) for i in ids], values=[float(values[i]) for i in ids]))
            continue
        rows = len(request["prompts"])
        if rows not in states:
            states[rows] = peer.begin(request["prompts"])
            peer.step(states[rows])
        answer(dict(seconds=[peer.step(states[rows]) for _ in range(request["steps"])]))


# --- the checkpoint, in both formats ----------------------------------------

def make(shape, folder):
    """Random weights, as safetensors for the engine and PyTorch and as GGUF for llama.cpp."""
    import gguf
    import numpy
    import torch
    import transformers
    from safetensors.torch import load_file

    part = folder.with_name(folder.name + ".part")  # complete or absent
    shutil.rmtree(part, ignore_errors=True)
    config = transformers.LlamaConfig(
        **SHAPES[shape], max_position_embeddings=131072, rms_norm_eps=1e-5, tie_word_embeddings=True, hidden_act="silu",
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=8192),
        bos_token_id=0, eos_token_id=1, dtype="bfloat16",
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).save_pretrained(part, max_shard_size="100GB")
    weights = load_file(part / "model.safetensors")

    w = gguf.GGUFWriter(part / "model.gguf", "llama")
    w.add_name(shape)
    w.add_vocab_size(config.vocab_size)
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_rope_dimension_count(config.head_dim)
    w.add_rope_freq_base(config.rope_parameters["rope_theta"])
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    w.add_tokenizer_model("none")
    w.add_tensor("rope_freqs.weight", rope_factors(config, numpy))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, x in weights.items():
        new = names.get_name(name, try_suffixes=(".weight",))
        if x.dim() == 1:
            w.add_tensor(new, x.float().numpy())
            continue
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:  # llama.cpp rotates adjacent dims
            x = x.view(heads, 2, -1, x.shape[1]).transpose(1, 2).reshape(x.shape)
        w.add_tensor(new, x.contiguous().view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    part.rename(folder)


def rope_factors(config, numpy):
    """Divisors of the rotary frequencies, as llama.cpp wants them."""
    rope, factors = config.rope_parameters, []
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for d in range(0, config.head_dim, 2):
        wavelength = 2 * numpy.pi * rope["rope_theta"] ** (d / config.head_dim)
        if wavelength < high:
            factors.append(1)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return numpy.array(factors, dtype=numpy.float32)


# --- the driver: standard library only --------------------------------------

class Process:
    """An engine that answers requests."""

    def __init__(self, command):
        env = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.command = command
        self.info = self.read().get("info", "")

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(map(str, self.command))}: ended with status {self.process.wait()}")
        return json.loads(line)

    def ask(self, **request):
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def environment():
    """The interpreter with the pinned packages, which are installed if they are not there."""
    python = CACHE / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", CACHE / "venv"], check=True)
    if subprocess.run([python, __file__, "--check"]).returncode:
        print("installing llama-cpp-python (from source, for this machine), torch and transformers; this takes many minutes", file=sys.stderr)
        env = os.environ | {"CMAKE_ARGS": os.environ.get("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF")}
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-binary", "llama-cpp-python",
                        "-r", HERE / "requirements.txt"], check=True, env=env)
    return python


def pinned():
    return dict(line.split("==") for line in (HERE / "requirements.txt").read_text().split())


def check():
    """Whether this interpreter has the pinned packages."""
    for name, version in pinned().items():
        try:
            if importlib.metadata.version(name).split("+")[0] != version:
                return False
        except importlib.metadata.PackageNotFoundError:
            return False
    return True


def measure(engines, widths, prompt, prefill, vocab, rounds, steps):
    """Seconds of a step by engine and width, and of prefill, a median for each round."""
    prompts = [[(7919 * row + 104729 * i + 1) % vocab for i in range(prompt)] for row in range(max(widths))]
    # The first step after another engine's does not count.
    requests = {n: dict(prompts=prompts[:n], steps=steps + 1) for n in widths} | {PREFILL: dict(prefill=prefill, times=2)}
    times = {name: {what: [] for what in requests} for name in engines}
    names = list(engines)
    for n in widths:
        for name in names:
            print(f"\rprompts of {n} rows: {name:<30}", end="", file=sys.stderr)
            engines[name].ask(prompts=prompts[:n], steps=1)
    for i in range(rounds):
        for what, request in requests.items():
            for name in names:
                print(f"\rround {i + 1} of {rounds}, {what}: {name:<30}", end="", file=sys.stderr)
                times[name][what].append(statistics.median(engines[name].ask(**request)["seconds"][1:]))
            names = names[1:] + names[:1]
    print(file=sys.stderr)
    return times


def ratios(times, name, what):
    """How often as long a peer takes as this engine, round by round."""
    return [peer / ours for peer, ours in zip(times[name][what], times[OURS][what])]


def table(times, widths, prefill):
    lines = ["| engine | rows | ms per step | tok/s | speed-up over its serial step | its time ÷ ours [range over rounds] |", "|---|---|---|---|---|---|"]
    for name in times:
        for what in times[name]:
            seconds, speedup, beside = statistics.median(times[name][what]), "–", "–"
            rows, tokens = (f"prefill of {prefill}", prefill) if what == PREFILL else (what, what)
            if what != PREFILL:
                speedup = f"{statistics.median(what * a / b for a, b in zip(times[name][widths[0]], times[name][what])) / widths[0]:.2f}"
            if name != OURS and OURS in times:
                r = ratios(times, name, what)
                beside = f"{statistics.median(r):.2f} [{min(r):.2f}, {max(r):.2f}]"
            lines.append(f"| {name} | {rows} | {1e3 * seconds:.1f} | {tokens / seconds:.1f} | {speedup} | {beside} |")
    return "\n".join(lines)


def aims(times, widths):
    """The aims, against the fastest variant of each peer in every round."""
    lines = []
    for peer, n, least in AIMS:
        variants = [name for name in times if name.startswith(peer)]
        if variants and n in widths and OURS in times:
            r = statistics.median(map(min, zip(*(ratios(times, name, n) for name in variants))))
            lines.append(f"- {peer} at {n} row{'s' * (n > 1)}: {r:.2f}× (aim: at least {least}×): {'met' if r >= least else 'missed'}")
    return "\n".join(lines)


def agreement(engines, prompt):
    """Which tokens each engine thinks likeliest after one prompt: all must run the same model."""
    answers = {name: e.ask(prefill=prompt, times=1) for name, e in engines.items()}
    return {name: dict(ids=a["ids"], values=a["values"]) for name, a in answers.items()}


def machine():
    info = dict(cpu=platform.processor(), system=platform.system(), kernel=platform.release(), cores=os.cpu_count())
    try:
        for line in open("/proc/cpuinfo"):
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "flags"):
                info["cpu" if key.startswith("model") else "flags"] = value.strip()
        info["flags"] = " ".join(f for f in info.get("flags", "").split() if f.startswith(("avx", "fma", "amx", "f16c")))
        info["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except OSError:
        pass
    return info


class Busy:
    """How much of the machine other processes took, since this was made until all children have ended."""

    def __init__(self):
        self.start = self.now()

    @staticmethod
    def now():
        ours = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        try:
            fields = open("/proc/stat").readline().split()[1:9]
        except OSError:
            return time.monotonic(), ours, None
        user, nice, system, _, _, irq, softirq, steal = (int(f) / os.sysconf("SC_CLK_TCK") for f in fields)
        return time.monotonic(), ours, user + nice + system + irq + softirq + steal

    def share(self):
        (t0, ours0, all0), (t1, ours1, all1) = self.start, self.now()
        return None if all0 is None else max(0.0, (all1 - all0) - (ours1 - ours0)) / (t1 - t0) / os.cpu_count()


def commit():
    def git(*args):
        return subprocess.run(["git", "-C", ROOT, *args], capture_output=True, text=True).stdout.strip()
    changes = git("status", "--porcelain", "--untracked-files=no", "--", "engine", "go.mod")
    return git("rev-parse", "HEAD") + ("+changes" if changes else "")


def record(name, results, text):
    """Replaces what is recorded of one machine, or adds it."""
    (HERE / name).mkdir(exist_ok=True)
    (HERE / name / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    readme, start, end = (HERE / "README.md").read_text(), f"<!-- {name} -->\n", "<!-- end -->"
    if start not in readme:
        readme += f"\n### {name}\n\n{start}{end}\n"
    head, _, rest = readme.partition(start)
    _, _, tail = rest.partition(end)
    (HERE / "README.md").write_text(f"{head}{start}{text}\n{end}{tail}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--shape", choices=SHAPES, default="llama-3.2-1b")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    p.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8], help="rows of a decode step; the first is the one speed-ups refer to")
    p.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    p.add_argument("--prefill", type=int, default=512, help="tokens of the prompt whose prefill is timed")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=4, help="timed steps of each engine and width in a round")
    p.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    p.add_argument("--record", metavar="MACHINE", help="write MACHINE/results.json and its table in README.md; for example epyc-zen4-2cores")
    p.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--make", type=pathlib.Path, help=argparse.SUPPRESS)
    p.add_argument("--worker", nargs=3, metavar=("ENGINE", "FOLDER", "CONTEXT"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.check:
        raise SystemExit(not check())
    if args.make:
        return make(args.shape, args.make)
    if args.worker:
        engine, folder, context = args.worker
        return worker(engine, pathlib.Path(folder), args.threads, int(context))
    if min(args.widths + [args.prompt, args.prefill, args.rounds, args.steps, args.threads]) < 1:
        p.error("widths, prompt, prefill, rounds, steps and threads must be at least 1")
    if len(set(args.widths)) < len(args.widths) or sum(args.widths) > 15:
        p.error("widths must differ, and be at most 15 rows together")
    if args.record is not None and not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", args.record):
        p.error("--record: a machine's name is made of lower-case letters, digits and dashes")
    if args.record and args.engines != ENGINES:
        p.error("--record is for a run of all engines")

    CACHE.mkdir(parents=True, exist_ok=True)
    python, folder, steps = environment(), CACHE / args.shape, CACHE / "steps"
    subprocess.run(["go", "build", "-o", steps, "./benchdata/peers/steps"], cwd=ROOT, check=True)
    if not folder.exists():
        print(f"making {folder}", file=sys.stderr)
        subprocess.run([python, __file__, "--shape", args.shape, "--make", folder], check=True)
    context = args.prompt + 4 + args.rounds * (args.steps + 1)
    context += -context % 64
    vocab = SHAPES[args.shape]["vocab_size"]
    prefill = [(31 * i + 5) % vocab for i in range(args.prefill)]
    step = max(args.prefill, args.prompt * max(args.widths))
    engines, busy = {}, Busy()
    try:
        for name in args.engines:
            print(f"loading {name}", file=sys.stderr)
            threads = ["--threads", str(args.threads)]
            if name == OURS:
                engines[name] = Process([steps, "-checkpoint", folder, "-context", str(context), "-step-tokens", str(step), *threads])
            else:
                engines[name] = Process([python, __file__, "--worker", name, folder, str(context), *threads])
        top = agreement(engines, prefill)
        times = measure(engines, args.widths, args.prompt, prefill, vocab, args.rounds, args.steps)
    finally:
        for e in engines.values():
            e.close()
    others = busy.share()
    info = {name: e.info for name, e in engines.items()}
    results = dict(
        date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), command=["peers.py", *sys.argv[1:]],
        commit=commit(), machine=machine(), versions=pinned() | {"python": platform.python_version()}, shape=args.shape, config=SHAPES[args.shape],
        threads=args.threads, others=others, prompt=args.prompt, prefill=args.prefill, steps=args.steps, engines=info, top5=top, seconds=times,
    )
    m = results["machine"]
    text = "\n".join([
        f"{results['date']}, {m['cpu']}, {args.threads} threads of {m['cores']} cores ({m.get('flags', '')}), {m['system']} {m['kernel']}, commit {results['commit'][:12]}",
        "", f"{args.shape}, bf16 weights, prompts of {args.prompt} tokens, median of {args.rounds} rounds of {args.steps} steps: `{shlex.join(results['command'])}`",
        "", table(times, args.widths, args.prefill), "", aims(times, args.widths),
        "", f"The likeliest tokens after the prompt of {args.prefill}: " + "; ".join(f"{name}: {t['ids']}" for name, t in top.items()) + ".",
    ])
    print(text)
    if others is not None and others > QUIET:
        print(f"\nOther processes took {100 * others:.0f} % of the machine: these numbers say little, and are not recorded.", file=sys.stderr)
        raise SystemExit(1)
    if args.record:
        record(args.record, results, text)


if __name__ == "__main__":
    main()
