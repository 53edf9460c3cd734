#!/usr/bin/env bash
# Packs what measures this project on a machine that has an NVIDIA driver and
# nothing else: test binaries, goldens, and run.sh.
#
#     make.sh FILE.tar.gz
#
# Needs Go and a C compiler; no GPU, no toolkit. The binaries need a C library
# as new as this machine's, and nothing more; the archive says which.
set -euo pipefail
file=$(realpath -m "${1:?usage: make.sh FILE.tar.gz}")
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/batchproof-cuda
mkdir -p "$root/benchdata"

for package in cuda validation; do
	mkdir "$root/$package"
	# Lazy binding: the functions of NVML are there once its library is opened.
	"${GO:-go}" test -c -tags cuda -trimpath -ldflags='-s -extldflags=-Wl,-z,lazy' -o "$root/$package/$package.test" "./$package"
done
needs=$(readelf -dW "$root"/*/*.test | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u)
if [ "$needs" != libc.so.6 ]; then
	echo "the binaries need more than a C library:" "$needs" >&2
	exit 1
fi
glibc=$(readelf -VW "$root"/*/*.test | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)

# Where the module lies, for relative paths; and what it was built from.
cp go.mod cuda/bundle/run.sh "$root"
cp -r benchdata/goldens "$root/benchdata"
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || commit+="+changes"
echo "$commit" >"$root/COMMIT"
echo "${glibc#GLIBC_}" >"$root/GLIBC"

mkdir -p "$(dirname "$file")"
tar -C "$work" --owner=0 --group=0 --sort=name -czf "$file" batchproof-cuda
echo "$file: $(du -h "$file" | cut -f1), for $(uname -m) with glibc ${glibc#GLIBC_} or newer; unpack, then: batchproof-cuda/run.sh"
