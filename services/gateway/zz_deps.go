package gateway

import (
	_ "google.golang.org/grpc"
	_ "github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	_ "go.yaml.in/yaml/v3"
	_ "github.com/oklog/ulid/v2"
	_ "pgregory.net/rapid"
	_ "github.com/weft-fabric/weft/proto/gen/weft/v1"
	_ "github.com/weft-fabric/weft/libs/cell"
)
