package scheduler

import (
	_ "pgregory.net/rapid"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/cockroachdb/datadriven"
	_ "github.com/oklog/ulid/v2"
	_ "github.com/weft-fabric/weft/proto/gen/weft/v1"
	_ "github.com/weft-fabric/weft/libs/cell"
)
