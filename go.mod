module github.com/batchproof/batchproof

go 1.26.0

require (
	github.com/NVIDIA/go-nvml v0.12.9-0
	github.com/edsrzf/mmap-go v1.2.0
	github.com/google/go-cmp v0.7.0
	github.com/klauspost/cpuid/v2 v2.4.2
	github.com/stretchr/testify v1.12.1
	go.uber.org/goleak v1.3.0
	golang.org/x/perf v0.0.0-20260908200009-22c9c6c9d4da
	golang.org/x/sys v0.50.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/aclements/go-moremath v0.0.0-20210112150236-f10218a38794 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

tool golang.org/x/perf/cmd/benchstat
