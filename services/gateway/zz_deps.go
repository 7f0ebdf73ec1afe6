package gateway

import (
	_ "github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	_ "github.com/oklog/ulid/v2"
	_ "github.com/weft-fabric/weft/libs/cell"
	_ "github.com/weft-fabric/weft/proto/gen/weft/v1"
	_ "go.yaml.in/yaml/v3"
	_ "google.golang.org/grpc"
	_ "pgregory.net/rapid"
)
