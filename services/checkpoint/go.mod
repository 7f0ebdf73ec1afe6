module github.com/weft-fabric/weft/services/checkpoint

go 1.26.7

require (
	github.com/cockroachdb/datadriven v1.0.3
	github.com/google/go-cmp v0.7.0
	github.com/weft-fabric/weft/libs v0.0.0
	github.com/weft-fabric/weft/proto v0.0.0
	pgregory.net/rapid v1.3.0
)

require (
	github.com/pmezard/go-difflib v1.0.1-0.20181226105442-5d4384ee4fb2 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/weft-fabric/weft/libs => ../../libs
	github.com/weft-fabric/weft/proto => ../../proto
)
