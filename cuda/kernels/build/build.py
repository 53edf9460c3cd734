#!/usr/bin/env python3
"""Makes the committed PTX from the CUDA sources, or checks that it is what they make.

    build.py         compile, write ../ptx and ../ptx/SHEET.txt
    build.py check   compile from nothing into a temporary folder, demand identity

Both assemble the PTX with ptxas for sm_80 and sm_90 and fail on a register
spill. The compiler (NVRTC) and the assembler are pinned wheels of CUDA 12.0
from PyPI, checked by hash: PTX ISA 8.0, which drivers R525 and newer load.
Needs Linux on x86-64, pip and a network or pip cache; no GPU, no toolkit.
"""
import ctypes
import glob
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile

WHEELS = {
    "nvidia-cuda-nvrtc-cu12==12.0.140": "8e94e991d85c422de4da87bdc7472fdc1364367bd4aace7000b559cd33122071",
    "nvidia-cuda-nvcc-cu12==12.0.140": "958d54df87d0c0b7207e7fed403d6eeda0890a01cc44cfeaccf87c7f90e9b165",
}
ARCHITECTURES = ["80", "90"]
OPTIONS = ["--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"]

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.dirname(HERE)
COMMITTED = os.path.join(SOURCES, "ptx")


def tools(work):
    """Downloads and unpacks the wheels; returns the paths of NVRTC and ptxas."""
    pins = os.path.join(work, "requirements.txt")
    with open(pins, "w") as f:
        for name, digest in WHEELS.items():
            f.write(f"{name} --hash=sha256:{digest}\n")
    wheels = os.environ.get("BATCHPROOF_WHEELS")  # a folder that has them already
    source = ["--no-index", "--find-links", wheels] if wheels else []
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                    "--require-hashes", "--only-binary=:all:", *source, "-d", work, "-r", pins], check=True)
    for wheel in glob.glob(os.path.join(work, "*.whl")):
        zipfile.ZipFile(wheel).extractall(work)
    ptxas = os.path.join(work, "nvidia/cuda_nvcc/bin/ptxas")
    os.chmod(ptxas, 0o755)
    return os.path.join(work, "nvidia/cuda_nvrtc/lib"), ptxas


class Compiler:
    def __init__(self, folder):
        ctypes.CDLL(os.path.join(folder, "libnvrtc-builtins.so.12.0"), mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(os.path.join(folder, "libnvrtc.so.12"))

    def ptx(self, name, source, headers, architecture):
        lib, program = self.lib, ctypes.c_void_p()
        names = (ctypes.c_char_p * len(headers))(*[h.encode() for h in headers])
        texts = (ctypes.c_char_p * len(headers))(*headers.values())
        if lib.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), len(headers), texts, names):
            sys.exit("nvrtcCreateProgram failed")
        options = [f"--gpu-architecture=compute_{architecture}", *OPTIONS]
        failed = lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*[o.encode() for o in options]))
        log = self.text(program, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog).decode().strip("\0\n ")
        if failed or log:
            sys.exit(f"{name}, compute_{architecture}:\n{log}")
        out = self.text(program, lib.nvrtcGetPTXSize, lib.nvrtcGetPTX).rstrip(b"\0")
        lib.nvrtcDestroyProgram(ctypes.byref(program))
        return out

    def text(self, program, size_of, get):
        size = ctypes.c_size_t()
        size_of(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        get(program, buffer)
        return buffer.raw


def assemble(ptxas, path, architecture, work):
    """Registers, shared memory and spills of each kernel, as ptxas reports them."""
    out = subprocess.run([ptxas, "-v", f"-arch=sm_{architecture}", path, "-o", os.path.join(work, "out.cubin")],
                         check=True, capture_output=True, text=True).stderr
    rows, kernel, spills = [], None, None
    for line in out.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = m[1]
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills = [int(x) for x in m.groups()]
        elif m := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            rows.append((kernel, int(m[1]), int(shared[1]) if shared else 0, *spills))
    return rows


def make(target, work):
    folder, ptxas = tools(work)
    compiler = Compiler(folder)
    headers = {os.path.basename(p): open(p, "rb").read() for p in glob.glob(os.path.join(SOURCES, "*.cuh"))}
    digest = hashlib.sha256()
    for path in sorted(glob.glob(os.path.join(SOURCES, "*.cu")) + glob.glob(os.path.join(SOURCES, "*.cuh"))):
        text = open(path, "rb").read()
        digest.update(f"{os.path.basename(path)} {len(text)}\n".encode() + text)
    sheet = ["# Made by `make kernels`. DO NOT EDIT.",
             "# " + ", ".join(WHEELS) + "; PTX ISA 8.0: drivers R525 (CUDA 12.0) and newer",
             f"{'kernel':28} {'sm':>3} {'registers':>9} {'static shared':>13} {'stack':>5} {'spills':>6}"]
    spilled, sheets = [], {}
    for path in sorted(glob.glob(os.path.join(SOURCES, "*.cu"))):
        name = os.path.basename(path)
        for architecture in ARCHITECTURES:
            out = os.path.join(target, f"{name[:-3]}.sm{architecture}.ptx")
            with open(out, "wb") as f:
                f.write(compiler.ptx(name, open(path, "rb").read(), headers, architecture))
            for kernel, registers, shared, stack, stores, loads in assemble(ptxas, out, architecture, work):
                sheets[kernel, architecture] = f"{kernel:28} {architecture:>3} {registers:9} {shared:13} {stack:5} {stores + loads:6}"
                if stores or loads or stack:
                    spilled.append(f"{kernel} on sm_{architecture}: {stores} bytes stored, {loads} loaded, stack of {stack}")
    with open(os.path.join(target, "SHEET.txt"), "w") as f:
        f.write("\n".join(sheet + [sheets[k] for k in sorted(sheets)]) + "\n")
    with open(os.path.join(target, "sources.sha256"), "w") as f:
        f.write(digest.hexdigest() + "\n")
    if spilled:
        sys.exit("registers spill, which no kernel may:\n" + "\n".join(spilled))


def check():
    with tempfile.TemporaryDirectory() as work:
        fresh = os.path.join(work, "ptx")
        os.mkdir(fresh)
        make(fresh, work)
        wrong = []
        for name in sorted(set(os.listdir(fresh)) | set(os.listdir(COMMITTED))):
            a, b = os.path.join(fresh, name), os.path.join(COMMITTED, name)
            if not os.path.exists(a) or not os.path.exists(b) or open(a, "rb").read() != open(b, "rb").read():
                wrong.append(name)
        if wrong:
            sys.exit("the committed PTX is not what the sources make (run `make kernels` and commit): " + ", ".join(wrong))
        print(f"{len(os.listdir(fresh))} files are what the sources make; no spills")


if __name__ == "__main__":
    if sys.argv[1:] == ["check"]:
        check()
    elif len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as work:
            for old in glob.glob(os.path.join(COMMITTED, "*")):
                os.remove(old)
            os.makedirs(COMMITTED, exist_ok=True)
            make(COMMITTED, work)
        print(open(os.path.join(COMMITTED, "SHEET.txt")).read(), end="")
    else:
        sys.exit(__doc__)
