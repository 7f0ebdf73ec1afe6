package nodeagent

import (
	_ "pgregory.net/rapid"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/NVIDIA/go-nvml/pkg/nvml"
	_ "golang.org/x/sys/unix"
	_ "github.com/cockroachdb/datadriven"
	_ "github.com/nats-io/nats.go"
	_ "github.com/weft-fabric/weft/proto/gen/weft/v1"
	_ "github.com/weft-fabric/weft/libs/cell"
)
