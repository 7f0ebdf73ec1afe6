package weft

import (
	_ "github.com/spf13/cobra"
	_ "google.golang.org/grpc"
	_ "github.com/oklog/ulid/v2"
	_ "golang.org/x/term"
	_ "github.com/mattn/go-isatty"
	_ "charm.land/lipgloss/v2"
	_ "go.yaml.in/yaml/v3"
	_ "github.com/nats-io/nats.go"
	_ "github.com/weft-fabric/weft/services/scheduler"
	_ "github.com/weft-fabric/weft/services/allocator"
	_ "github.com/weft-fabric/weft/services/checkpoint"
	_ "github.com/weft-fabric/weft/services/telemetry"
	_ "github.com/weft-fabric/weft/services/node-agent"
	_ "github.com/weft-fabric/weft/services/gateway"
	_ "github.com/weft-fabric/weft/proto/gen/weft/v1"
	_ "github.com/weft-fabric/weft/libs/cell"
)
