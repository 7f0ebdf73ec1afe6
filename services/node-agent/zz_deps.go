package nodeagent

import (
	_ "github.com/NVIDIA/go-nvml/pkg/nvml"
	_ "github.com/cockroachdb/datadriven"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/nats-io/nats.go"
	_ "github.com/weft-fabric/weft/libs/cell"
	_ "github.com/weft-fabric/weft/proto/gen/weft/v1"
	_ "golang.org/x/sys/unix"
	_ "pgregory.net/rapid"
)
