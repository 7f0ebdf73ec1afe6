module github.com/weft-fabric/weft/services/gateway

go 1.26.7

require (
	github.com/grpc-ecosystem/grpc-gateway/v2 v2.33.0
	github.com/oklog/ulid/v2 v2.1.2
	github.com/weft-fabric/weft/libs v0.0.0
	github.com/weft-fabric/weft/proto v0.0.0
	go.yaml.in/yaml/v3 v3.0.6
	google.golang.org/grpc v1.85.0
	pgregory.net/rapid v1.3.0
)

require (
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/api v0.0.0-20261110000943-09e21b237f2c // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261104224025-d1e00e9f33ab // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace (
	github.com/weft-fabric/weft/libs => ../../libs
	github.com/weft-fabric/weft/proto => ../../proto
)
