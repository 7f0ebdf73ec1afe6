module github.com/weft-fabric/weft/services/node-agent

go 1.26.7

require (
	github.com/NVIDIA/go-nvml v0.13.4-1
	github.com/cockroachdb/datadriven v1.0.3
	github.com/google/go-cmp v0.7.0
	github.com/nats-io/nats.go v1.55.0
	github.com/weft-fabric/weft/libs v0.0.0
	github.com/weft-fabric/weft/proto v0.0.0
	github.com/zeebo/blake3 v0.2.4
	golang.org/x/sys v0.50.0
	google.golang.org/protobuf v1.36.12
	pgregory.net/rapid v1.3.0
)

require (
	github.com/klauspost/compress v1.20.4 // indirect
	github.com/klauspost/cpuid/v2 v2.0.12 // indirect
	github.com/nats-io/nkeys v0.4.17 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2 // indirect
	golang.org/x/crypto v0.58.0 // indirect
)

replace (
	github.com/weft-fabric/weft/libs => ../../libs
	github.com/weft-fabric/weft/proto => ../../proto
)
